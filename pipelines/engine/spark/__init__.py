"""What starts Spark: sessions, jars, Java, the class archive, and shipping modules to executors."""
