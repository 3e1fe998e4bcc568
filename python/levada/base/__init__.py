"""What all rooms use: exceptions, optional packages, how processes end."""
