//! The conversion of a request's tensors, from any protocol, to raw columns.
//!
//! A protocol makes a [`Tensor`] of each input, and [`columns`] puts them and the lengths of their
//! lists together: an input `<feature>__lengths` has the number of flat values of `<feature>` in
//! each row.

mod allowance;
mod datatype;
mod raw;

use std::borrow::Cow;
use std::collections::BTreeMap;

use zillion_feature::{RawColumn, RawColumns, RawValue, RawValues};

pub use allowance::{Allowance, Shape};
pub(crate) use allowance::{
    MOST_INPUTS, MOST_NAME_BYTES, check_rows, too_many_inputs, too_many_rows, too_many_values,
};
pub use datatype::Datatype;
pub use raw::{decode, encode, encode_scores};
pub(crate) use raw::{floats, from_half, utf8};

use crate::config::Limits;
use crate::error::{Result, ServeError};
use crate::text::shorten;

/// Checks the id of a request, which its answer repeats.
///
/// # Errors
/// Returns [`ServeError::TooLarge`] if the id is longer than a name, so that a small request has no
/// large answer.
pub(crate) fn check_id(id: &str) -> Result<()> {
    match id.len() <= MOST_NAME_BYTES {
        true => Ok(()),
        false => Err(ServeError::TooLarge {
            what: "the size in bytes of the id of the request",
            limit: MOST_NAME_BYTES,
            remedy: "send a shorter id",
        }),
    }
}

/// The ending of the name of an input that holds the lengths of another input's lists.
pub const LENGTHS: &str = "__lengths";

/// The largest number of copies that are made of a value that stands for a whole list.
const MOST_COPIES: usize = 1 << 14;

/// The values of an input and their shape: `[rows]`, or `[rows, values per row]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor<'a> {
    shape: Shape,
    values: RawValues<'a>,
    /// Whether the only value stands for all elements of the shape.
    is_constant: bool,
    /// Whether the only row stands for all rows of the request.
    is_shared: bool,
}

impl<'a> Tensor<'a> {
    /// Creates a tensor of values.
    ///
    /// # Errors
    /// Returns an error that names the input if the shape does not fit the values.
    pub fn new(input: &str, shape: Shape, values: RawValues<'a>) -> Result<Self> {
        shape.check_values(input, values.len())?;
        Ok(Self { shape, values, is_constant: false, is_shared: false })
    }

    /// Creates a tensor of values, or of one value that stands for all elements of the shape. Such
    /// a value is not repeated in memory.
    ///
    /// # Errors
    /// Returns an error that names the input if the shape does not fit the values.
    pub fn of_values_or_constant(input: &str, shape: Shape, values: RawValues<'a>) -> Result<Self> {
        match (values.len(), shape.elements()) {
            (1, 0) => Self::new(input, shape, RawValues::Any(Vec::new())),
            (1, 2..) => Ok(Self { shape, values, is_constant: true, is_shared: false }),
            _ => Self::new(input, shape, values),
        }
    }

    /// Creates a tensor of values in bytes: see [`decode`].
    ///
    /// # Errors
    /// Returns an error that names the input if the bytes are not its elements.
    pub fn from_raw(
        input: &str,
        shape: Shape,
        datatype: Datatype,
        bytes: &'a [u8],
    ) -> Result<Self> {
        let values =
            decode(datatype, shape.elements(), bytes).map_err(|reason| refuse(input, &reason))?;
        Ok(Self { shape, values, is_constant: false, is_shared: false })
    }

    /// Sets whether the only row of the tensor stands for all rows of the request.
    #[must_use]
    pub(crate) fn share(self, is_shared: bool) -> Self {
        Self { is_shared, ..self }
    }

    /// Returns the column of the tensor. `lengths` are those of an input of their own.
    fn into_column(self, input: &str, lengths: Option<Vec<usize>>) -> Result<RawColumn<'a>> {
        let Self { shape, values, is_constant, is_shared } = self;
        let copies = match (is_constant, &lengths) {
            (false, _) => None,
            (true, Some(_)) => Some(shape.elements()),
            (true, None) => Some(shape.width()),
        };
        let values = match copies {
            None => values,
            Some(copies) if copies > MOST_COPIES => {
                let reason = format!(
                    "one value stands for a list of {copies} values, but at most {MOST_COPIES} \
                     are allowed; send each value of the list"
                );
                return Err(refuse(input, &reason));
            }
            Some(copies) => repeat(values, copies),
        };
        let width = shape.width();
        Ok(match lengths {
            Some(lengths) => RawColumn { values, lengths: Some(lengths), is_shared },
            // All rows share the row of a constant.
            None if is_constant => {
                let lengths = (width != 1).then(|| vec![width]);
                RawColumn { values, lengths, is_shared: true }
            }
            // Rows of one value are plain values. The encoder takes them for lists if the feature
            // has lists.
            None if width == 1 => RawColumn { values, lengths: None, is_shared },
            None => {
                let lengths = Some(vec![width; shape.rows()]);
                RawColumn { values, lengths, is_shared }
            }
        })
    }
}

/// Repeats the values of a list, in memory too.
fn repeat(values: RawValues<'_>, times: usize) -> RawValues<'_> {
    match values {
        RawValues::Ints(values) => RawValues::Ints(values.repeat(times)),
        RawValues::Uints(values) => RawValues::Uints(values.repeat(times)),
        RawValues::Floats(values) => RawValues::Floats(values.repeat(times)),
        RawValues::Any(values) => {
            let copies = values.iter().cycle().take(values.len() * times);
            RawValues::Any(copies.cloned().collect())
        }
    }
}

/// Returns the datatype that has a name in the protocol.
///
/// # Errors
/// Returns an error if the protocol has no datatype of this name.
pub fn datatype(input: &str, name: &str) -> Result<Datatype> {
    Datatype::parse(name).ok_or_else(|| {
        let known = Datatype::all().map(Datatype::name).collect::<Vec<_>>().join(", ");
        let name = shorten(name);
        refuse(input, &format!("unknown datatype `{name}`; use one of {known}"))
    })
}

/// The tensors of a request by the names of their inputs.
pub type Tensors<'a> = Vec<(Cow<'a, str>, Tensor<'a>)>;

/// Combines tensors with their lengths, and returns the number of rows and the columns. Every
/// input must have an entry for each row, or one entry that all rows share.
///
/// # Errors
/// Returns an error that names the input if the tensors do not fit together, and
/// [`ServeError::TooLarge`] if they have more rows than the limits allow.
pub fn columns<'a>(mut tensors: Tensors<'a>, limits: &Limits) -> Result<(usize, RawColumns<'a>)> {
    tensors.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
    if let Some(pair) = tensors.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        return Err(refuse(&pair[0].0, "the request has this input twice; send it once"));
    }
    let mut lengths = take_lengths(&mut tensors)?;
    let rows = count_rows(&tensors, &lengths, limits)?;
    let column = |(name, tensor): (Cow<'a, str>, Tensor<'a>)| {
        let column = tensor.into_column(&name, lengths.remove(name.as_ref()))?;
        Ok((name, column))
    };
    Ok((rows, tensors.into_iter().map(column).collect::<Result<_>>()?))
}

/// Takes the tensors of lengths out of sorted tensors, and returns the lengths by the names of the
/// inputs that they belong to.
fn take_lengths(tensors: &mut Tensors<'_>) -> Result<BTreeMap<String, Vec<usize>>> {
    let mut lengths = BTreeMap::new();
    let found = tensors.extract_if(.., |(name, _)| name.ends_with(LENGTHS));
    let found: Vec<_> = found.collect();
    for (name, tensor) in found {
        let list = lengths_of(&tensor).ok_or_else(|| {
            refuse(&name, "a length is not an integer of at least 0; send integers of at least 0")
        })?;
        let of = &name[..name.len() - LENGTHS.len()];
        if tensors.binary_search_by(|(name, _)| name.as_ref().cmp(of)).is_err() {
            return Err(refuse(
                &name,
                &format!(
                    "the lengths belong to no input, because the request has no `{}`; send the \
                     input, or remove the lengths",
                    shorten(of)
                ),
            ));
        }
        lengths.insert(of.to_owned(), list);
    }
    Ok(lengths)
}

/// Returns the number of rows on which all tensors agree.
fn count_rows(
    tensors: &Tensors<'_>,
    lengths: &BTreeMap<String, Vec<usize>>,
    limits: &Limits,
) -> Result<usize> {
    let mut rows: Option<(usize, &str)> = None;
    for (name, tensor) in tensors {
        let own = lengths.get(name.as_ref());
        let of_this = own.map_or(tensor.shape.rows(), Vec::len);
        check_rows(limits, of_this)?;
        match rows {
            _ if tensor.is_shared && of_this == 1 => {}
            _ if tensor.is_shared => {
                let reason = format!(
                    "the input has {of_this} rows, but its parameter `shared` says that all rows \
                     share one; send one row, or remove the parameter"
                );
                return Err(refuse(name, &reason));
            }
            None => rows = Some((of_this, name)),
            Some((others, other)) if others != of_this => {
                let other = shorten(other);
                let reason = format!(
                    "the input has {of_this} rows, but input `{other}` has {others}; send the \
                         same number of rows in every input"
                );
                return Err(refuse(name, &reason));
            }
            Some(_) => {}
        }
        if own.is_some() && !tensor.shape.is_flat() {
            return Err(refuse(
                name,
                "the values have lengths and a shape of two dimensions; send them with a shape of \
                 one dimension",
            ));
        }
    }
    match rows {
        Some((rows, _)) => Ok(rows),
        // All inputs are shared.
        None if !tensors.is_empty() => Ok(1),
        None => Err(ServeError::Malformed(
            "the request has no `inputs`; send a tensor for each input of the model".to_owned(),
        )),
    }
}

fn lengths_of(tensor: &Tensor<'_>) -> Option<Vec<usize>> {
    let size = |x: &i64| usize::try_from(*x).ok();
    let lengths: Option<Vec<usize>> = match &tensor.values {
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
    };
    // The number of lengths was checked against the limit of rows.
    lengths.map(|all| if tensor.is_constant { all.repeat(tensor.shape.elements()) } else { all })
}

/// Returns the error that names an input and a reason.
pub(crate) fn refuse(input: &str, reason: &str) -> ServeError {
    ServeError::Malformed(format!("input `{}`: {reason}", shorten(input)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(
        inputs: &[(&'static str, &[u64], RawValues<'static>)],
    ) -> Result<(usize, RawColumns<'static>)> {
        let limits = Limits::default();
        let mut allowance = Allowance::new(&limits);
        let mut tensors = Tensors::new();
        for (name, shape, values) in inputs {
            let shape = allowance.take(name, shape)?;
            let tensor = Tensor::of_values_or_constant(name, shape, values.clone())?;
            tensors.push((Cow::Borrowed(*name), tensor));
        }
        columns(tensors, &limits)
    }

    #[test]
    fn a_constant_is_one_value_for_all_rows() {
        let text = || RawValues::Any(vec![RawValue::Text("a".into())]);
        let (rows, all) = of(&[
            ("x", &[16_384], RawValues::Ints(vec![7])),
            ("y", &[16_384, 1], text()),
            ("z", &[16_384, 3], text()),
            ("tags", &[4], RawValues::Ints(vec![5])),
            ("tags__lengths", &[16_384], RawValues::Ints(vec![0])),
        ])
        .unwrap();
        assert_eq!(rows, 16_384);
        for (name, values) in [("x", RawValues::Ints(vec![7])), ("y", text())] {
            let column = RawColumn { values, lengths: None, is_shared: true };
            assert_eq!(all[name], column, "{name}");
        }
        assert_eq!((all["z"].values.len(), &all["z"].lengths), (3, &Some(vec![3])));
        assert_eq!(all["tags"].values, RawValues::Ints(vec![5; 4]));
        assert_eq!(all["tags"].lengths, Some(vec![0; 16_384]));
        let wide = of(&[("x", &[2, 1 << 20], text())]).unwrap_err().to_string();
        assert!(wide.contains("input `x`: one value stands for a list of 1048576"), "{wide}");
        let (rows, none) = of(&[("x", &[3, 0], text())]).unwrap();
        assert_eq!((rows, none["x"].values.len(), none["x"].is_shared), (3, 0, false));
    }

    #[test]
    fn one_row_is_shared_by_all() {
        let limits = Limits::default();
        let mut allowance = Allowance::new(&limits);
        let mut tensor = |name: &'static str, shape: &[u64], values: Vec<i64>, is_shared| {
            let shape = allowance.take(name, shape).unwrap();
            let tensor = Tensor::new(name, shape, RawValues::Ints(values)).unwrap();
            (Cow::Borrowed(name), tensor.share(is_shared))
        };
        let all = vec![
            tensor("item", &[3], vec![1, 2, 3], false),
            tensor("genres", &[1, 2], vec![4, 5], true),
            tensor("user", &[1], vec![7], true),
            tensor("seen", &[3], vec![8, 9, 10], true),
            tensor("seen__lengths", &[1], vec![3], false),
        ];
        let (rows, all) = columns(all, &limits).unwrap();
        assert_eq!(rows, 3);
        let of = |values, lengths, is_shared| RawColumn {
            values: RawValues::Ints(values),
            lengths,
            is_shared,
        };
        assert_eq!(all["item"], of(vec![1, 2, 3], None, false));
        assert_eq!(all["genres"], of(vec![4, 5], Some(vec![2]), true));
        assert_eq!(all["user"], of(vec![7], None, true));
        assert_eq!(all["seen"], of(vec![8, 9, 10], Some(vec![3]), true));
        let alone = vec![tensor("user", &[1], vec![7], true)];
        assert_eq!(columns(alone, &limits).unwrap().0, 1);
        let two = vec![tensor("user", &[2], vec![7, 8], true)];
        let refused = columns(two, &limits).unwrap_err().to_string();
        assert!(refused.contains("input `user`: the input has 2 rows, but its parameter `shared`"));
        let twice = [7, 8].map(|user| tensor("user", &[1], vec![user], false));
        let refused = columns(twice.into(), &limits).unwrap_err().to_string();
        assert!(refused.contains("`user`: the request has this input twice"), "{refused}");
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
                refused.to_string().contains("input `x__lengths`: a length is not an integer"),
                "{refused}"
            );
        }
    }

    #[test]
    fn oversized_shapes_cost_no_memory() {
        let none = || RawValues::Ints(Vec::new());
        let refused = of(&[("x", &[1 << 40, 0], none())]).unwrap_err().to_string();
        assert!(refused.contains("serve.max_rows"), "{refused}");
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
            is_shared in any::<bool>(),
        ) {
            let limits = Limits::default();
            let mut allowance = Allowance::new(&limits);
            let mut tensors = Tensors::new();
            let shape = allowance.take("x", &shape);
            if let Ok(tensor) = shape.and_then(|s| Tensor::from_raw("x", s, datatype, &bytes)) {
                tensors.push((Cow::Borrowed("x"), tensor.share(is_shared)));
            }
            let rows = allowance.take("x__lengths", &[lengths.len() as u64]).unwrap();
            let lengths = Tensor::new("x__lengths", rows, RawValues::Ints(lengths)).unwrap();
            tensors.push((Cow::Borrowed("x__lengths"), lengths));
            let _ = columns(tensors, &limits);
        }
    }
}
