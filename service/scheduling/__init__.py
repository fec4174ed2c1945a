"""Which texts make the next batch: fair queue, scheduler, throughput estimate."""
