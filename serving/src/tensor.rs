//! The conversion of a request's tensors, from any protocol, to raw columns.
//!
//! A protocol makes a [`Tensor`] of each input, and [`columns`] puts them and the lengths of their
//! lists together: an input `<feature>__lengths` has the number of flat values of `<feature>` in
//! each row.

mod datatype;
mod raw;

use std::borrow::Cow;
use std::collections::BTreeMap;

use zillion_feature::{RawColumn, RawColumns, RawValue, RawValues};

pub use datatype::Datatype;
pub use raw::{decode, encode, encode_scores};
pub(crate) use raw::{floats, from_half, utf8};

use crate::error::{Result, ServeError};

/// The ending of the name of an input that holds the lengths of another input's lists.
pub const LENGTHS: &str = "__lengths";

/// The values of an input and their shape: `[rows]`, or `[rows, values per row]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor<'a> {
    shape: Vec<usize>,
    values: RawValues<'a>,
}

impl<'a> Tensor<'a> {
    /// Creates a tensor of values.
    ///
    /// # Errors
    /// Returns an error that names the input if the shape does not fit the values, or does
    /// not have one or two dimensions.
    pub fn new(input: &str, shape: &[u64], values: RawValues<'a>) -> Result<Self> {
        let shape = sizes(input, shape)?;
        if shape.iter().product::<usize>() != values.len() {
            let reason =
                format!("the shape {shape:?} does not fit the {} values of the data", values.len());
            return Err(refuse(input, &reason));
        }
        Ok(Self { shape, values })
    }

    /// Creates a tensor of values in bytes: see [`decode`].
    ///
    /// # Errors
    /// Returns an error that names the input if the shape is invalid, or if the bytes are
    /// not its elements.
    pub fn from_raw(
        input: &str,
        shape: &[u64],
        datatype: Datatype,
        bytes: &'a [u8],
    ) -> Result<Self> {
        let shape = sizes(input, shape)?;
        let elements = shape.iter().product();
        let values = decode(datatype, elements, bytes).map_err(|reason| refuse(input, &reason))?;
        Ok(Self { shape, values })
    }

    fn rows(&self) -> usize {
        self.shape.first().copied().unwrap_or(0)
    }
}

/// Checks that a shape has one or two dimensions whose product does not overflow.
fn sizes(input: &str, shape: &[u64]) -> Result<Vec<usize>> {
    if !(1..=2).contains(&shape.len()) {
        return Err(refuse(input, "the shape must be [rows], or [rows, values per row]"));
    }
    let sizes: Option<Vec<usize>> = shape.iter().map(|&dim| usize::try_from(dim).ok()).collect();
    let product = |sizes: &[usize]| sizes.iter().try_fold(1usize, |n, &dim| n.checked_mul(dim));
    sizes
        .filter(|sizes| product(sizes).is_some())
        .ok_or_else(|| refuse(input, &format!("the shape {shape:?} is too large for any data")))
}

/// Returns the datatype that has a name in the protocol.
///
/// # Errors
/// Returns an error if the protocol has no datatype of this name.
pub fn datatype(input: &str, name: &str) -> Result<Datatype> {
    Datatype::parse(name).ok_or_else(|| {
        let known = Datatype::all().map(Datatype::name).collect::<Vec<_>>().join(", ");
        refuse(input, &format!("unknown datatype `{name}`; expected one of {known}"))
    })
}

/// Combines tensors with their lengths, and returns the number of rows and the columns. Every
/// input must have an entry for each row.
///
/// # Errors
/// Returns an error that names the input if the tensors do not fit together.
pub fn columns<'a>(
    mut tensors: BTreeMap<Cow<'a, str>, Tensor<'a>>,
) -> Result<(usize, RawColumns<'a>)> {
    let mut lengths: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    let names: Vec<Cow<'a, str>> =
        tensors.keys().filter(|name| name.ends_with(LENGTHS)).cloned().collect();
    for name in names {
        let Some(tensor) = tensors.remove(&name) else { continue };
        let list = lengths_of(&tensor.values)
            .ok_or_else(|| refuse(&name, "lengths must be integers of at least 0"))?;
        let of = name[..name.len() - LENGTHS.len()].to_owned();
        if !tensors.contains_key(of.as_str()) {
            return Err(refuse(
                &name,
                &format!("the lengths belong to no input: the request has no `{of}`"),
            ));
        }
        lengths.insert(of, list);
    }
    let mut rows: Option<(usize, String)> = None;
    let mut columns = RawColumns::new();
    for (name, tensor) in tensors {
        let own = lengths.remove(name.as_ref());
        let of_this = own.as_ref().map_or(tensor.rows(), Vec::len);
        match &rows {
            None => rows = Some((of_this, name.to_string())),
            Some((others, other)) if *others != of_this => {
                let reason =
                    format!("the input has {of_this} rows, and input `{other}` has {others}");
                return Err(refuse(&name, &reason));
            }
            Some(_) => {}
        }
        let width = tensor.shape.get(1).copied().unwrap_or(1);
        let lengths = match own {
            Some(_) if tensor.shape.len() > 1 => {
                return Err(refuse(
                    &name,
                    "values with lengths must be flat: send a shape of one dimension",
                ));
            }
            Some(lengths) => Some(lengths),
            // Rows of one value are plain values. The encoder takes them for lists if the feature
            // has lists.
            None if width == 1 => None,
            // Rows without a value cost no bytes, so that a shape could claim any number of them.
            None if width == 0 && tensor.rows() > MOST_EMPTY_ROWS => {
                return Err(refuse(
                    &name,
                    "the input has too many rows without values; send fewer rows",
                ));
            }
            None => Some(vec![width; tensor.rows()]),
        };
        columns.insert(name, RawColumn { values: tensor.values, lengths, is_shared: false });
    }
    match rows {
        Some((rows, _)) => Ok((rows, columns)),
        None => Err(ServeError::Malformed(
            "the request has no `inputs`; send a tensor for each input of the model".to_owned(),
        )),
    }
}

/// The largest number of rows without a value, which is above any sensible limit of rows.
const MOST_EMPTY_ROWS: usize = 1 << 20;

fn lengths_of(values: &RawValues<'_>) -> Option<Vec<usize>> {
    let size = |x: &i64| usize::try_from(*x).ok();
    match values {
        RawValues::Ints(values) => values.iter().map(size).collect(),
        RawValues::Uints(values) => values.iter().map(|&x| usize::try_from(x).ok()).collect(),
        RawValues::Floats(values) => values.is_empty().then(Vec::new),
        RawValues::Any(values) => {
            let length = |value: &RawValue<'_>| match value {
                RawValue::Int(x) => size(x),
                RawValue::Uint(x) => usize::try_from(*x).ok(),
                _ => None,
            };
            values.iter().map(length).collect()
        }
    }
}

/// Returns the error that names an input and a reason.
pub(crate) fn refuse(input: &str, reason: &str) -> ServeError {
    ServeError::Malformed(format!("input `{input}`: {reason}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(
        inputs: &[(&'static str, &[u64], RawValues<'static>)],
    ) -> Result<(usize, RawColumns<'static>)> {
        let mut tensors = BTreeMap::new();
        for (name, shape, values) in inputs {
            tensors.insert(Cow::Borrowed(*name), Tensor::new(name, shape, values.clone())?);
        }
        columns(tensors)
    }

    #[test]
    fn lengths_may_have_any_integer_type() {
        for lengths in [
            RawValues::Ints(vec![2, 0]),
            RawValues::Uints(vec![2, 0]),
            RawValues::Any(vec![RawValue::Int(2), RawValue::Int(0)]),
        ] {
            let values = RawValues::Ints(vec![7, 8]);
            let (rows, columns) =
                of(&[("x", &[2], values), ("x__lengths", &[2], lengths)]).unwrap();
            assert_eq!((rows, &columns["x"].lengths), (2, &Some(vec![2, 0])));
        }
        for lengths in [RawValues::Ints(vec![-1]), RawValues::Floats(vec![1.0])] {
            let values = RawValues::Ints(vec![7]);
            let refused = of(&[("x", &[1], values), ("x__lengths", &[1], lengths)]).unwrap_err();
            assert!(
                refused.to_string().contains("input `x__lengths`: lengths must be integers"),
                "{refused}"
            );
        }
    }

    #[test]
    fn oversized_shapes_cost_no_memory() {
        let none = || RawValues::Ints(Vec::new());
        let refused = of(&[("x", &[1 << 40, 0], none())]).unwrap_err().to_string();
        assert!(refused.contains("input `x`: the input has too many rows"), "{refused}");
        let refused = of(&[("x", &[u64::MAX, u64::MAX], none())]).unwrap_err().to_string();
        assert!(refused.contains("too large for any data"), "{refused}");
        assert_eq!(of(&[("x", &[3, 0], none())]).unwrap().0, 3);
    }

    proptest! {
        #[test]
        fn no_tensor_is_a_panic(
            shape in prop::collection::vec(prop_oneof![0u64..5, any::<u64>()], 0..4),
            datatype in prop::sample::select(Datatype::all().collect::<Vec<_>>()),
            bytes in prop::collection::vec(any::<u8>(), 0..64),
            lengths in prop::collection::vec(any::<i64>(), 0..4),
        ) {
            let mut tensors = BTreeMap::new();
            if let Ok(tensor) = Tensor::from_raw("x", &shape, datatype, &bytes) {
                tensors.insert(Cow::Borrowed("x"), tensor);
            }
            let rows = [lengths.len() as u64];
            let lengths = Tensor::new("x__lengths", &rows, RawValues::Ints(lengths)).unwrap();
            tensors.insert(Cow::Borrowed("x__lengths"), lengths);
            let _ = columns(tensors);
        }
    }
}
