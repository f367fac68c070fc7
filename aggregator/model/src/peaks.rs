//! Peak rates of devices by their name, from the vendors' datasheets.
//!
//! Arithmetic rates are dense: where a datasheet states a rate with sparsity, half of it. They are those of tensor cores
//! (matrix cores), but `f32` is that of the ordinary cores on NVIDIA's devices. A rate that a device lacks is 0.
//!
//! Datasheets of Hopper (one card): H100 SXM and H200 state 67 (f64 tensor cores, f32), 989 (tf32), 1979 (bf16) and 3958
//! (f8) with sparsity; H100 NVL and H200 NVL state 60, 835, 1671 and 3341. Their memories are 3.35, 4.8, 3.9 and 4.8 TB/s.
//!
//! A datasheet of several devices gives the sums: GB200 NVL72 states 20 (f8), 10 (bf16) and 5 (tf32) PFLOP/s with sparsity, 160 (f32) and
//! 80 (f64) TFLOP/s and 16 TB/s for the two devices of a superchip. HGX B300 states 72 (f8), 36 (bf16) and 18 (tf32) PFLOP/s with
//! sparsity, 600 (f32) and 10 (f64) TFLOP/s and 64 TB/s for eight devices. L40 states rates of half of L40S. H800 and H20 are
//! Hopper with limits for export: H800 in f64, H20 in all rates.
//!
//! Sources: NVIDIA's datasheets of V100 (2020), T4 (2019), A100 (2022), A10 (2022), A10G (2022, of AWS), L4 (2023), L40 (2022), L40S
//! (2023), H100 (2024), H200 (2024), H800 (2023), H20 (2023), GH200 (2023), HGX B200 (2025), HGX B300 (2025) and GB200 NVL72 (2024);
//! AMD's datasheets of MI210 (2022), MI250X (2021), MI300X (2023), MI325X (2024), MI350X (2025) and MI355X (2025).

/// Peak rates of one device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Peaks {
    /// In TFLOP/s: f64, f32, tf32, f16, bf16, f8.
    tflops: [f64; 6],
    /// Memory, in GB/s; 0 if the name does not tell it.
    memory_gbs: f64,
}

/// The order of [`Peaks::tflops`].
const PRECISIONS: [&[&str]; 6] = [&["f64"], &["f32"], &["tf32"], &["f16"], &["bf16"], &["f8e4m3", "f8e5m2"]];

/// Words of a device's name, and its peaks. The first entry whose words are all in the name counts.
#[rustfmt::skip]
const DEVICES: [(&[&str], Peaks); 35] = [
    //                                    f64    f32    tf32   f16     bf16    f8      GB/s
    (&["gb200"],                   peaks([40.0,  80.0,  1250.0, 2500.0, 2500.0, 5000.0], 8000.0)),
    (&["b300"],                    peaks([1.25,  75.0,  1125.0, 2250.0, 2250.0, 4500.0], 8000.0)),
    (&["b200"],                    peaks([37.0,  75.0,  1100.0, 2250.0, 2250.0, 4500.0], 7700.0)),
    // The name has the memory of the host, beside which the device has 96 GB of HBM3.
    (&["gh200", "480gb"],          peaks([67.0,  67.0,  494.5, 989.5,  989.5,  1979.0], 4000.0)),
    (&["gh200", "144g", "hbm3e"],  peaks([67.0,  67.0,  494.5, 989.5,  989.5,  1979.0], 4900.0)),
    (&["gh200"],                   peaks([67.0,  67.0,  494.5, 989.5,  989.5,  1979.0], 0.0)),
    (&["h200", "nvl"],             peaks([60.0,  60.0,  417.5, 835.5,  835.5,  1670.5], 4800.0)),
    (&["h200"],                    peaks([67.0,  67.0,  494.5, 989.5,  989.5,  1979.0], 4800.0)),
    (&["h100", "nvl"],             peaks([60.0,  60.0,  417.5, 835.5,  835.5,  1670.5], 3900.0)),
    (&["h100", "pcie"],            peaks([51.0,  51.0,  378.0, 756.5,  756.5,  1513.0], 2000.0)),
    (&["h100", "80gb", "hbm3"],    peaks([67.0,  67.0,  494.5, 989.5,  989.5,  1979.0], 3350.0)),
    (&["h800", "pcie"],            peaks([0.8,   51.0,  378.0, 756.5,  756.5,  1513.0], 2000.0)),
    (&["h800"],                    peaks([1.0,   67.0,  494.5, 989.5,  989.5,  1979.0], 3350.0)),
    (&["h20", "3e"],               peaks([1.0,   44.0,  74.0,  148.0,  148.0,  296.0],  4800.0)),
    (&["h20"],                     peaks([1.0,   44.0,  74.0,  148.0,  148.0,  296.0],  4000.0)),
    (&["a100", "sxm4", "80gb"],    peaks([19.5,  19.5,  156.0, 312.0,  312.0,  0.0],    2039.0)),
    (&["a100", "80gb", "pcie"],    peaks([19.5,  19.5,  156.0, 312.0,  312.0,  0.0],    1935.0)),
    (&["a100", "40gb"],            peaks([19.5,  19.5,  156.0, 312.0,  312.0,  0.0],    1555.0)),
    (&["a100"],                    peaks([19.5,  19.5,  156.0, 312.0,  312.0,  0.0],    0.0)),
    (&["l4"],                      peaks([0.0,   30.3,  60.0,  121.0,  121.0,  242.5],  300.0)),
    (&["l40s"],                    peaks([0.0,   91.6,  183.0, 362.05, 362.05, 733.0],  864.0)),
    (&["l40"],                     peaks([0.0,   90.5,  90.5,  181.05, 181.05, 362.0],  864.0)),
    (&["a10g"],                    peaks([0.0,   35.0,  35.0,  70.0,   70.0,   0.0],    600.0)),
    (&["a10"],                     peaks([0.0,   31.2,  62.5,  125.0,  125.0,  0.0],    600.0)),
    (&["v100s", "pcie"],           peaks([8.2,   16.4,  0.0,   130.0,  0.0,    0.0],    1134.0)),
    (&["v100", "sxm2"],            peaks([7.8,   15.7,  0.0,   125.0,  0.0,    0.0],    900.0)),
    (&["v100", "sxm3"],            peaks([7.8,   15.7,  0.0,   125.0,  0.0,    0.0],    900.0)),
    (&["v100", "pcie"],            peaks([7.0,   14.0,  0.0,   112.0,  0.0,    0.0],    900.0)),
    (&["t4"],                      peaks([0.0,   8.1,   0.0,   65.0,   0.0,    0.0],    320.0)),
    (&["mi210"],                   peaks([45.3,  45.3,  0.0,   181.0,  181.0,  0.0],    1638.4)),
    // A process sees each of the two dies as a device: half of 95.7 (matrix cores), 383 TFLOP/s and 3276.8 GB/s.
    (&["mi250x"],                  peaks([47.85, 47.85, 0.0,   191.5,  191.5,  0.0],    1638.4)),
    (&["mi300x"],                  peaks([163.4, 163.4, 653.7, 1307.4, 1307.4, 2614.9], 5300.0)),
    (&["mi325x"],                  peaks([163.4, 163.4, 653.7, 1307.4, 1307.4, 2614.9], 6000.0)),
    // Their matrix cores have no tf32.
    (&["mi350x"],                  peaks([72.1,  144.2, 0.0,   2306.9, 2306.9, 4613.7], 8000.0)),
    (&["mi355x"],                  peaks([78.6,  157.3, 0.0,   2516.6, 2516.6, 5033.2], 8000.0)),
];

const fn peaks(tflops: [f64; 6], memory_gbs: f64) -> Peaks {
    Peaks { tflops, memory_gbs }
}

impl Peaks {
    /// The peaks of a device, by its name as CUDA or HIP reports it; `None` for devices that are not in the table.
    pub fn of(name: &str) -> Option<Self> {
        let name = name.to_ascii_lowercase();
        let words: Vec<&str> = name.split([' ', '-']).collect();
        let is_it = |parts: &&(&[&str], Self)| parts.0.iter().all(|part| words.contains(part));
        DEVICES.iter().find(is_it).map(|(_, peaks)| *peaks)
    }

    /// The rate for a precision as in `step_flops.precision`, in FLOP/s.
    pub fn flops_per_s(&self, precision: &str) -> Option<f64> {
        let at = PRECISIONS.iter().position(|words| words.contains(&precision))?;
        Some(self.tflops[at] * 1e12).filter(|peak| *peak > 0.0)
    }

    /// The highest rate for floating-point numbers of 16 or more bits, in FLOP/s: the flat roof of a roofline.
    pub fn roof_flops_per_s(&self) -> f64 {
        self.tflops[..5].iter().copied().fold(0.0, f64::max) * 1e12
    }

    /// The rate of the memory, in bytes per second.
    pub fn bytes_per_s(&self) -> Option<f64> {
        Some(self.memory_gbs * 1e9).filter(|peak| *peak > 0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_known_by_the_words_of_their_name() {
        let tenths = |rate: f64| (rate * 10.0).round() / 10.0;
        let rates = |name: &str| {
            let peaks = Peaks::of(name)?;
            let (flops, bytes) = (peaks.flops_per_s("bf16"), peaks.bytes_per_s());
            Some((flops.map(|rate| tenths(rate * 1e-12)), bytes.map(|rate| tenths(rate * 1e-9))))
        };
        assert_eq!(rates("NVIDIA H100 80GB HBM3"), Some((Some(989.5), Some(3350.0))));
        assert_eq!(rates("NVIDIA H100 PCIe"), Some((Some(756.5), Some(2000.0))));
        assert_eq!(rates("NVIDIA H200"), Some((Some(989.5), Some(4800.0))));
        assert_eq!(rates("NVIDIA A100-SXM4-80GB"), Some((Some(312.0), Some(2039.0))));
        assert_eq!(rates("NVIDIA A100-PG509-200"), Some((Some(312.0), None)));
        assert_eq!(rates("Tesla V100-SXM2-16GB"), Some((None, Some(900.0))));
        assert_eq!(rates("AMD Instinct MI300X"), Some((Some(1307.4), Some(5300.0))));
        // Devices of similar names are others.
        assert_eq!(rates("NVIDIA L40"), Some((Some(181.0), Some(864.0))));
        assert_eq!(rates("NVIDIA GB200"), Some((Some(2500.0), Some(8000.0))));
        assert_eq!(rates("NVIDIA GH200 480GB"), Some((Some(989.5), Some(4000.0))));
        assert_eq!(rates("NVIDIA H20-3e"), Some((Some(148.0), Some(4800.0))));
        assert_eq!(rates("AMD Instinct MI355X"), Some((Some(2516.6), Some(8000.0))));
        for name in
            ["NVIDIA A16", "NVIDIA L20", "NVIDIA GB10", "NVIDIA H100", "AMD Instinct MI300A", "Quadro GP100", ""]
        {
            assert_eq!(rates(name), None, "{name}");
        }
    }

    #[test]
    fn a_rate_that_a_device_lacks_is_unknown() {
        let volta = Peaks::of("Tesla V100-PCIE-32GB").unwrap();
        assert_eq!(
            (volta.flops_per_s("f16"), volta.flops_per_s("tf32"), volta.flops_per_s("i8")),
            (Some(112e12), None, None)
        );
        assert_eq!(volta.roof_flops_per_s(), 112e12);
    }
}
