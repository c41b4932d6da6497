"""The parts that start Spark: sessions, jars, Java, the archive of classes, the shipping of modules to executors."""
