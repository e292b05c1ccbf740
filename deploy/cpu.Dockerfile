# Octavo on the CPU: docker build -f deploy/cpu.Dockerfile -t octavo:cpu . (in the repository's root)
FROM python:3.12-slim
# OpenMP; without it Numba's own threads are used, which serve one request at a time
RUN apt-get update && apt-get install -y --no-install-recommends libgomp1 && rm -rf /var/lib/apt/lists/*
COPY pyproject.toml README.md LICENSE /src/
COPY docs /src/docs
COPY src /src/src
RUN pip install --no-cache-dir '/src[events]' && rm -rf /src \
    && useradd --uid 1000 --create-home octavo && mkdir /cache && chown octavo /cache
USER 1000
# The root file system may be read-only: what is written goes to /cache (models, kernels) and /tmp.
ENV HOME=/cache OCTAVO_CACHE=/cache/octavo HF_HOME=/cache/huggingface
VOLUME /cache
EXPOSE 8080 5557 5558
HEALTHCHECK --start-period=120s CMD ["python", "-c", \
  "import urllib.request as r; r.urlopen('http://127.0.0.1:8080/health', timeout=5)"]
ENTRYPOINT ["octavo", "serve", "--host", "0.0.0.0"]
