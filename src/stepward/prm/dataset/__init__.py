"""The Arrow dataset: columns, schemas, contract, and the one store that writes and reads folders of shards."""
