"""Line searches: choose the step size along a direction."""
