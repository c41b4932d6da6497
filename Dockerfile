# One image for every process of a cluster: Airflow's, Spark's and the driver's. They must agree on versions,
# since executors run the same code as the driver.
FROM python:3.11.14-slim-bookworm AS build

WORKDIR /build
COPY requirements.lock pyproject.toml ./
COPY deployment/locked deployment/
RUN apt-get update && apt-get install -y --no-install-recommends binutils
# The final image gets the runtime packages, without tools for tests and docs; the build tools stay in this stage.
RUN deployment/locked uv hatchling > build.lock && deployment/locked all > image.lock \
    && pip install --no-cache-dir --require-hashes -r build.lock \
    && python -m venv --without-pip /opt/venv \
    && uv pip sync --python /opt/venv/bin/python --require-hashes --no-cache image.lock \
    # Packages bring their own tests, which nothing imports.
    && find /opt/venv/lib -type d -name tests -prune -exec rm -r {} + \
    # Some libraries have symbols for debuggers. Those in *.libs were changed after they were linked, which strip can break.
    && find /opt/venv/lib -name '*.so*' -not -path '*.libs/*' -exec strip --strip-unneeded {} + \
    && /opt/venv/bin/python -m compileall -q -j 0 /opt/venv/lib

COPY README.md LICENSE tidegate.toml ./
COPY tidegate tidegate
COPY windowing windowing
COPY pipelines pipelines
COPY expectations expectations
RUN python -m hatchling build -t wheel -d /build/dist \
    && uv pip install --python /opt/venv/bin/python --no-deps --no-cache /build/dist/*.whl


FROM python:3.11.14-slim-bookworm

RUN apt-get update \
    && apt-get install -y --no-install-recommends openjdk-17-jre-headless procps tini \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 10001 tidegate \
    && mkdir -p /opt/tidegate /opt/jars /opt/airflow/passwords /opt/airflow/logs /scratch \
    && chown -R tidegate:tidegate /opt/tidegate /opt/jars /opt/airflow /scratch \
    # A tmpfs in its place belongs to root, and some engines give it the folder's mode.
    && chmod 1777 /opt/airflow

ENV PATH=/opt/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    TIDEGATE_JARS=/opt/jars/delta \
    TIDEGATE_CONFIG=/opt/tidegate/tidegate.toml \
    AIRFLOW_HOME=/opt/airflow

COPY --from=build /opt/venv /opt/venv

WORKDIR /opt/tidegate
COPY dags dags
COPY deployment/spark deployment/spark.conf deployment/
# The image has its own project file instead of the example's, with the cluster's paths and the master's address.
COPY deployment/tidegate.toml tidegate.toml

# By number: Kubernetes can't tell from a name that the user is not root.
USER 10001
# Fetches Delta's jars and creates the class archive, so that runs need no network and start quickly. Setup also writes
# next to that folder, so its parent folder must belong to the user.
RUN tidegate setup

ENTRYPOINT ["tini", "--"]
CMD ["tidegate", "--help"]
