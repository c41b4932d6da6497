"""Lineage of a pipeline in the form of OpenLineage: its datasets, their columns, and the counts of a run.

This package produces plain values, needs no OpenLineage package and sends nothing. `tidegate tables lineage` shows
them, and the operator passes them to Airflow's provider.
"""
