//! Writes a planted run for experiments: `cargo run --example plant -- DIR [RANKS] [ROWS]`.

use std::error::Error;
use std::path::Path;

use fixtures::planted;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let directory = arguments.next().ok_or("usage: plant DIR [RANKS] [ROWS]")?;
    let ranks: i32 = arguments.next().map_or(Ok(8), |a| a.parse())?;
    let rows: usize = arguments.next().map_or(Ok(2_000), |a| a.parse())?;
    let plan = planted::Plan {
        ranks,
        steps: 10,
        slow: vec![(ranks / 2, 3_000_000)],
        offset_ns: (0..i64::from(ranks)).map(|rank| rank * 1_000_003).collect(),
        drift_ppb: (0..i64::from(ranks)).map(|rank| rank % 3 * 20_000).collect(),
        ..planted::Plan::default()
    };
    let truth = planted::write(&plan.with_rows(rows), Path::new(&directory))?;
    println!("{} rows of events, {} steps, {} buckets", truth.events, truth.steps.len(), truth.buckets.len());
    Ok(())
}
