"""Spark as a tool: sessions, jars, Java, the archive of classes, the shipping of modules to executors."""
