"""The name by which PySpark finds Spark's format `tidegate`: it imports the packages that begin with `pyspark_`.

It has no other code. It is not at the top of a checkout, where the workers of the tests would find it: some versions of
Spark let `register_format` give no other default for option `config` to a format that they found by themselves.
"""

from tidegate.pipelines.observe.reading.data_source import TidegateFormat as DefaultSource

__all__ = ["DefaultSource"]
