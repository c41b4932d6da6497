"""Object stores: their files as a file system of Arrow, credentials, and the check that commits are safe."""
