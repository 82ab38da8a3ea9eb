"""Proximal operators of nonsmooth functions of trees."""
