FROM debian:12
RUN apt-get update && apt-get install -y --no-install-recommends perl-base && rm -rf /var/lib/apt/lists/*
COPY --chmod=755 shop /usr/local/bin/shop
CMD ["shop"]
