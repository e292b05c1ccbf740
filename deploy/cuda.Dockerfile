# Octavo on NVIDIA GPUs: docker build -f deploy/cuda.Dockerfile -t octavo:cuda . (in the repository's root)
# torch brings the CUDA libraries, Triton its assembler; the driver is the host's, by NVIDIA's container toolkit.
FROM python:3.12-slim
# Triton compiles the C code that launches a kernel
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev libgomp1 && rm -rf /var/lib/apt/lists/*
COPY pyproject.toml README.md LICENSE /src/
COPY docs /src/docs
COPY src /src/src
RUN pip install --no-cache-dir '/src[gpu,events]' && rm -rf /src \
    && useradd --uid 1000 --create-home octavo && mkdir /cache && chown octavo /cache
USER 1000
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
# The root file system may be read-only: what is written goes to /cache (models, kernels) and /tmp.
ENV HOME=/cache OCTAVO_CACHE=/cache/octavo HF_HOME=/cache/huggingface TRITON_CACHE_DIR=/cache/triton
VOLUME /cache
EXPOSE 8080 5557 5558
HEALTHCHECK --start-period=300s CMD ["python", "-c", \
  "import urllib.request as r; r.urlopen('http://127.0.0.1:8080/health', timeout=5)"]
ENTRYPOINT ["octavo", "serve", "--host", "0.0.0.0", "--device", "gpu"]
