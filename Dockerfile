# One image for every process of a cluster: Airflow's, Spark's and the driver's. They must agree on versions,
# since executors run the same code as the driver.
FROM python:3.11.14-slim-bookworm

RUN apt-get update \
    && apt-get install -y --no-install-recommends openjdk-17-jre-headless procps tini \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 10001 tidegate \
    && mkdir -p /opt/tidegate /opt/jars /opt/airflow/passwords /opt/airflow/logs /scratch \
    && chown -R tidegate:tidegate /opt/tidegate /opt/jars /opt/airflow /scratch

ENV PATH=/opt/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    TIDEGATE_JARS=/opt/jars \
    TIDEGATE_CONFIG=/opt/tidegate/tidegate.toml \
    AIRFLOW_HOME=/opt/airflow

WORKDIR /opt/tidegate
COPY requirements.lock ./
RUN python -m venv /opt/venv \
    && pip install --no-cache-dir "$(sed -n 's/^\(uv==[0-9.]*\).*/\1/p' requirements.lock)" \
    && uv pip sync --python /opt/venv/bin/python --require-hashes --compile-bytecode --no-cache requirements.lock

COPY pyproject.toml README.md LICENSE tidegate.toml ./
COPY tidegate tidegate
COPY windowing windowing
COPY pipelines pipelines
COPY expectations expectations
RUN uv pip install --python /opt/venv/bin/python --no-deps --no-build-isolation --no-cache .

COPY dags dags
COPY deployment/spark deployment/spark.conf deployment/
# The image's own project takes the place of the example's: cluster paths and the master's address.
COPY deployment/tidegate.toml tidegate.toml

# By its number: Kubernetes can't tell from a name that it is not root.
USER 10001
# Delta's jars and the archive of classes, once: no run needs a network, and each starts quickly.
RUN tidegate setup

ENTRYPOINT ["tini", "--"]
CMD ["tidegate", "--help"]
