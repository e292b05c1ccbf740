"""`octavo embed` and `octavo rank`."""
