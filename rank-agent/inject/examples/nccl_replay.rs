//! Replays the calls that NCCL makes into its profiler plugin: `nccl_replay LIBRARY SCENARIO VERSION [NUMBER]`.

fn main() -> Result<(), String> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    fixtures::nccl_replay::main(&arguments)
}
