"""The parts that start Spark: sessions, jars, Java, the archive of classes, and shipping modules to executors."""
