"""Spark as a tool: sessions, jars, Java, the archive of classes, and the project's modules on their way to executors."""
