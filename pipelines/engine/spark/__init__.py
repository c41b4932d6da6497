"""Everything that starting Spark needs: sessions, jars, Java, the class archive, and shipping modules to executors."""
