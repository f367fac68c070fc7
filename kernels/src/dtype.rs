//! The arithmetic of a workload.

use std::fmt;
use std::str::FromStr;

use crate::Error;

/// The rounding of the inputs of matrix products. Products accumulate in f32 for all types, and parameters are f32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dtype {
    /// IEEE single precision.
    #[default]
    F32,
    /// Single precision with 10 bits of mantissa in products: NVIDIA's TensorFloat-32.
    Tf32,
    /// 8 bits of exponent, 7 of mantissa.
    Bf16,
}

impl Dtype {
    /// Size of one stored element in bytes.
    pub fn size_bytes(self) -> usize {
        match self {
            Self::F32 | Self::Tf32 => 4,
            Self::Bf16 => 2,
        }
    }

    /// Its name on the command line and in the tables of a run.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Tf32 => "tf32",
            Self::Bf16 => "bf16",
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Dtype {
    type Err = Error;

    fn from_str(word: &str) -> Result<Self, Error> {
        [Self::F32, Self::Tf32, Self::Bf16]
            .into_iter()
            .find(|dtype| dtype.as_str() == word)
            .ok_or_else(|| Error::UnknownDtype { word: word.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_others_are_refused() {
        for dtype in [Dtype::F32, Dtype::Tf32, Dtype::Bf16] {
            assert_eq!(dtype.to_string().parse::<Dtype>().unwrap(), dtype);
        }
        let error = "fp8".parse::<Dtype>().unwrap_err().to_string();
        assert_eq!(error, "unknown data type `fp8`: use f32, tf32 or bf16");
    }
}
