//! The reading and writing of binary bodies.

use zillion_feature::FeatureKey;

use super::{WireError, WireResult};

#[cfg(target_endian = "big")]
compile_error!("the wire copies numbers as they lie in memory, which must be little-endian");

/// A writer that appends numbers to a body.
pub(crate) struct Writer<'a>(pub(crate) &'a mut Vec<u8>);

impl Writer<'_> {
    pub(crate) fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    pub(crate) fn u16(&mut self, value: u16) {
        self.0.extend(value.to_le_bytes());
    }

    pub(crate) fn u32(&mut self, value: u32) {
        self.0.extend(value.to_le_bytes());
    }

    pub(crate) fn u64(&mut self, value: u64) {
        self.0.extend(value.to_le_bytes());
    }

    pub(crate) fn f32(&mut self, value: f32) {
        self.u32(value.to_bits());
    }

    pub(crate) fn f64(&mut self, value: f64) {
        self.u64(value.to_bits());
    }

    /// Appends numbers one after another, without their count.
    pub(crate) fn all<T: bytemuck::Pod>(&mut self, values: &[T]) {
        self.0.extend_from_slice(bytemuck::cast_slice(values));
    }

    /// Appends keys one after another, without their count.
    pub(crate) fn keys(&mut self, keys: &[FeatureKey]) {
        self.0.reserve(size_of_val(keys));
        keys.iter().for_each(|key| self.0.extend(key.0.to_le_bytes()));
    }

    /// Appends a count and bytes.
    pub(crate) fn blob(&mut self, bytes: &[u8]) {
        self.u32(bytes.len() as u32);
        self.0.extend_from_slice(bytes);
    }
}

/// A reader of a body. Each read checks that the body has the bytes.
#[derive(Clone, Debug)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(body: &'a [u8]) -> Self {
        Self { rest: body }
    }

    /// Takes the next bytes.
    pub(crate) fn take(&mut self, bytes: usize) -> WireResult<&'a [u8]> {
        let Some((taken, rest)) = self.rest.split_at_checked(bytes) else {
            return Err(WireError::new(format!(
                "the body ends {} bytes too early; use the same version of the program on all hosts",
                bytes - self.rest.len()
            )));
        };
        self.rest = rest;
        Ok(taken)
    }

    /// Takes the bytes of `count` entries of `size` bytes.
    pub(crate) fn take_entries(&mut self, count: usize, size: usize) -> WireResult<&'a [u8]> {
        let bytes = count.checked_mul(size).ok_or_else(|| {
            WireError::new(format!("the body names {count} entries, which no memory can hold"))
        })?;
        self.take(bytes)
    }

    fn number<const N: usize>(&mut self) -> WireResult<[u8; N]> {
        let mut number = [0; N];
        number.copy_from_slice(self.take(N)?);
        Ok(number)
    }

    pub(crate) fn u8(&mut self) -> WireResult<u8> {
        self.number().map(u8::from_le_bytes)
    }

    pub(crate) fn u16(&mut self) -> WireResult<u16> {
        self.number().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> WireResult<u32> {
        self.number().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> WireResult<u64> {
        self.number().map(u64::from_le_bytes)
    }

    pub(crate) fn f32(&mut self) -> WireResult<f32> {
        self.u32().map(f32::from_bits)
    }

    pub(crate) fn f64(&mut self) -> WireResult<f64> {
        self.u64().map(f64::from_bits)
    }

    /// Reads a truth value, which must be 0 or 1.
    pub(crate) fn bool(&mut self) -> WireResult<bool> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(WireError::new(format!("the body has {other} instead of 0 or 1"))),
        }
    }

    /// Reads `count` numbers of four bytes.
    pub(crate) fn u32s(&mut self, count: usize) -> WireResult<Vec<u32>> {
        let bytes = self.take_entries(count, 4)?;
        let mut values = vec![0; count];
        bytemuck::cast_slice_mut(&mut values).copy_from_slice(bytes);
        Ok(values)
    }

    /// Reads `count` floats, and adds them to the end of `values`.
    pub(crate) fn f32s(&mut self, count: usize, values: &mut Vec<f32>) -> WireResult<()> {
        let bytes = self.take_entries(count, 4)?;
        let before = values.len();
        values.resize(before + count, 0.0);
        bytemuck::cast_slice_mut(&mut values[before..]).copy_from_slice(bytes);
        Ok(())
    }

    /// Reads the next `count` keys.
    pub(crate) fn keys(&mut self, count: usize) -> WireResult<Vec<FeatureKey>> {
        let bytes = self.take_entries(count, 8)?;
        let key = |bytes: &[u8]| {
            let mut number = [0; 8];
            number.copy_from_slice(bytes);
            FeatureKey(u64::from_le_bytes(number))
        };
        Ok(bytes.chunks_exact(8).map(key).collect())
    }

    /// Reads a count and as many bytes.
    pub(crate) fn blob(&mut self) -> WireResult<&'a [u8]> {
        let bytes = self.u32()? as usize;
        self.take(bytes)
    }

    /// Checks that the body has been read to its end.
    pub(crate) fn end(self) -> WireResult<()> {
        if self.rest.is_empty() {
            return Ok(());
        }
        Err(WireError::new(format!(
            "the body has {} bytes too many; use the same version of the program on all hosts",
            self.rest.len()
        )))
    }
}
