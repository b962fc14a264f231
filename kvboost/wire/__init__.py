"""What both ends of a connection speak: generated messages and their codec, addresses, errors as statuses, traces."""
