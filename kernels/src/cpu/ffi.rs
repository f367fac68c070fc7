//! The one unsafe call of the CPU back end: `matrixmultiply` takes raw pointers and strides.

use std::ops::Range;

/// A matrix of f32 within a slice: element (row, col) is at `row · row_stride + col · col_stride`.
#[derive(Clone, Copy, Debug)]
pub(super) struct View {
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) row_stride: usize,
    pub(super) col_stride: usize,
}

impl View {
    /// Number of slice elements that the view spans; `None` if it exceeds the address space.
    fn extent(&self) -> Option<Range<usize>> {
        if self.rows == 0 || self.cols == 0 {
            return Some(0..0);
        }
        let last_row = (self.rows - 1).checked_mul(self.row_stride)?;
        let last_col = (self.cols - 1).checked_mul(self.col_stride)?;
        Some(0..last_row.checked_add(last_col)?.checked_add(1)?)
    }

    fn fits(&self, slice: &[f32]) -> bool {
        let strides_fit = isize::try_from(self.row_stride).is_ok() && isize::try_from(self.col_stride).is_ok();
        strides_fit && self.extent().is_some_and(|extent| extent.end <= slice.len())
    }
}

/// C ← alpha · A · B + beta · C with C dense and row-major, one thread.
///
/// Returns false and writes nothing if a view does not fit its slice or the shapes do not match.
#[must_use]
pub(super) fn sgemm(alpha: f32, a: (View, &[f32]), b: (View, &[f32]), beta: f32, c: &mut [f32]) -> bool {
    let ((av, a), (bv, b)) = (a, b);
    let cv = View { rows: av.rows, cols: bv.cols, row_stride: bv.cols, col_stride: 1 };
    if av.cols != bv.rows || !av.fits(a) || !bv.fits(b) || !cv.fits(c) {
        return false;
    }
    // SAFETY: `fits` has shown that every element the shapes and strides reach lies inside its slice and that no stride
    // loses bits as isize. `c` is borrowed mutably, so it overlaps neither `a` nor `b`, and a dense row-major C maps
    // different elements to different addresses, as `sgemm` requires of its output.
    unsafe {
        matrixmultiply::sgemm(
            av.rows,
            av.cols,
            bv.cols,
            alpha,
            a.as_ptr(),
            av.row_stride as isize,
            av.col_stride as isize,
            b.as_ptr(),
            bv.row_stride as isize,
            bv.col_stride as isize,
            beta,
            c.as_mut_ptr(),
            cv.row_stride as isize,
            cv.col_stride as isize,
        );
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dense(rows: usize, cols: usize) -> View {
        View { rows, cols, row_stride: cols, col_stride: 1 }
    }

    #[test]
    fn views_outside_their_slices_are_refused_before_anything_is_written() {
        let ok = [1.0; 6];
        let mut c = [7.0; 4];
        assert!(!sgemm(1.0, (dense(2, 3), &ok[..5]), (dense(3, 2), &ok), 0.0, &mut c), "A is one short");
        assert!(!sgemm(1.0, (dense(2, 3), &ok), (dense(3, 2), &ok[..5]), 0.0, &mut c), "B is one short");
        assert!(!sgemm(1.0, (dense(2, 3), &ok), (dense(3, 2), &ok), 0.0, &mut c[..3]), "C is one short");
        assert!(!sgemm(1.0, (dense(2, 3), &ok), (dense(2, 3), &ok), 0.0, &mut c), "inner dimensions differ");
        let wide = View { rows: 2, cols: 3, row_stride: usize::MAX, col_stride: 1 };
        assert!(!sgemm(1.0, (wide, &ok), (dense(3, 2), &ok), 0.0, &mut c), "the stride exceeds the address space");
        assert_eq!(c, [7.0; 4]);
        assert!(sgemm(1.0, (dense(2, 3), &ok), (dense(3, 2), &ok), 0.0, &mut c));
        assert_eq!(c, [3.0; 4]);
    }

    #[test]
    fn empty_shapes_add_nothing() {
        assert!(sgemm(1.0, (dense(0, 3), &[]), (dense(3, 2), &[1.0; 6]), 0.0, &mut []));
        let mut c = [7.0; 4];
        assert!(sgemm(1.0, (dense(2, 0), &[]), (dense(0, 2), &[]), 0.5, &mut c));
        assert_eq!(c, [3.5; 4], "an empty sum leaves beta · C");
    }
}
