"""From texts to results: input checks, tokenisation, decoding. Knows no HTTP."""
