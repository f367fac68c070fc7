//! Callbacks to bounded queues to rows to shards.
