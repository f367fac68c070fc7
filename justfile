# Short names for the common commands; `just --list` prints them. Every recipe is one line that also works without just.

# Format, lints, documentation and the tests of all crates
check:
    ./tests/check

# The tests whose name contains FILTER, of one crate: just test aggregator stragglers
test CRATE FILTER="":
    cargo test --locked -p {{CRATE}} {{FILTER}}

# Accepts the new output of all snapshot tests; look at `git diff` afterwards
bless CRATE FILTER="":
    INSTA_UPDATE=always cargo test --locked -p {{CRATE}} {{FILTER}}

# Compares two aggregator binaries, in turns: just bench OLD NEW
bench OLD NEW:
    ./tests/bench/speed {{OLD}} {{NEW}}

# Everything that CI runs
gate:
    ./tests/all

# The documentation of all crates, without dependencies
docs:
    cargo doc --locked --workspace --no-deps --open
