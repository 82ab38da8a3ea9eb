"""Line searches: how far to go along a direction."""
