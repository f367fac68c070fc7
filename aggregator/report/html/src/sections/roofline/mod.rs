//! The roofline: FLOP/s by arithmetic intensity, of kernels or of operators.

use trace::DeviceRow;

use crate::by_name::{ByName, Counted};
use crate::columns::columns;
use crate::section::{Chart, PageData, ReportInput, Section, script};
use crate::sections::kernels::add_kernels;
use crate::sections::operators::add_operators;
use model::Error;
use model::peaks::Peaks;

pub(crate) static SECTION: Section = Section {
    id: "roofline",
    title: "Roofline",
    lead: "FLOP/s by arithmetic intensity (FLOPs per byte), with the limits of the devices. Points below the slope are limited by \
           memory, points below the flat roof by arithmetic. The bytes of torch's operators are a lower bound (each factor and \
           result once), so their points may lie further left.",
    proof: false,
    tables: &[],
    data,
    scripts: &[script!("roofline.js")],
};

fn data(run: &ReportInput<'_>, page: &mut PageData) -> Result<Option<Chart>, Error> {
    let roofline = roofline(run.kernels, run.operators, &run.analyzed.devices);
    page.table(&roofline.devices, columns!(DeviceRow: name peak_flops peak_bytes_per_s))?;
    page.value("roofline_of", &roofline.of)?;
    add_kernels(run, page)?;
    add_operators(run, page)?;
    Ok(Some(Chart::drawn_if(roofline.counted.placed > 0, roofline.missing())))
}

/// What a roofline can show. The script places its points: arithmetic by memory traffic.
#[derive(Debug, Default)]
struct Roofline {
    /// `kernel` or `operator`.
    of: &'static str,
    counted: Counted,
    /// Distinct models of devices with a known limit.
    devices: Vec<DeviceRow>,
}

impl Roofline {
    /// Names the data that the roofline lacks.
    fn missing(&self) -> Option<String> {
        let of = self.of;
        if self.counted.placed == 0 {
            return Some(match self.counted.without_bytes {
                0 => {
                    "No kernel or operator has a FLOP count. FLOPs of operators are computed from their shapes, which \
                     torch.profiler records with `record_shapes=True`."
                        .into()
                }
                n => format!(
                    "{} a FLOP count but no byte count, so arithmetic intensity is unknown.",
                    if n == 1 { format!("1 {of} has") } else { format!("{n} {of}s have") }
                ),
            });
        }
        self.devices.is_empty().then(|| "No roof is drawn, because the peak rates of the devices are unknown.".into())
    }
}

/// Describes the roofline of kernels, or of operators if no kernel has a FLOP count.
fn roofline(kernels: &ByName, operators: &ByName, devices: &[DeviceRow]) -> Roofline {
    let (of, chosen) = if kernels.has_flops() { ("kernel", kernels) } else { ("operator", operators) };
    let mut found = Roofline { of, counted: chosen.counted(), devices: Vec::new() };
    for row in devices {
        let positive = |peak: Option<f64>| peak.filter(|p| p.is_finite() && *p > 0.0);
        let known = row.name.as_deref().and_then(Peaks::of);
        let peak_flops = positive(row.peak_flops).or_else(|| Some(known?.roof_flops_per_s()));
        let peak_bytes_per_s = positive(row.peak_bytes_per_s).or_else(|| known?.bytes_per_s());
        let name = Some(row.name.clone().unwrap_or_else(|| "device".into()));
        let device = DeviceRow { name, peak_flops, peak_bytes_per_s, ..DeviceRow::default() };
        if (peak_flops.is_some() || peak_bytes_per_s.is_some()) && !found.devices.contains(&device) {
            found.devices.push(device);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use trace::OpStatsRow;

    use super::*;
    use crate::by_name::operators;
    use crate::page_limits::Limits;
    use model::analysis::Tables;

    #[test]
    fn a_roofline_names_the_missing_data() {
        let op = |bytes| OpStatsRow {
            name: "mm".into(),
            calls: 2,
            total_ns: 10,
            flops: Some(1000),
            flops_ns: Some(10),
            bytes,
            ..Default::default()
        };
        let by_name = |bytes| operators(&Tables { op_stats: vec![op(bytes)], ..Tables::default() }, &Limits::default());
        let (none, rows) = (ByName::default(), by_name(None));
        let no_flops = roofline(&none, &none, &[]).missing().unwrap();
        assert!(no_flops.contains("record_shapes"), "{no_flops}");
        let no_bytes = roofline(&none, &rows, &[]).missing().unwrap();
        assert!(no_bytes.contains("no byte count"), "{no_bytes}");
        let rows = by_name(Some(100));
        let placed = roofline(&none, &rows, &[]);
        assert_eq!((placed.counted.placed, placed.of), (1, "operator"));
        assert!(placed.missing().unwrap().contains("peak rates of the devices"));
        let device = DeviceRow { peak_flops: Some(1e12), ..DeviceRow::default() };
        let roofed = roofline(&none, &rows, &[device.clone(), device]);
        assert_eq!((roofed.devices.len(), roofed.missing()), (1, None));
    }
}
