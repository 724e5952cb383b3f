//! The choice of matrix products of a run in the manifest of a checkpoint.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use zillion_device::gpu::Algorithm;

/// The machine that computes the products of a run whose precision is not `f32`, and the algorithms
/// that a GPU chose. With the same ones, a resumed run has the bits of a run that was never
/// interrupted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProductChoice {
    /// The instructions of the processors, by [`Instructions::name`]; absent if a GPU computes the
    /// products.
    ///
    /// [`Instructions::name`]: zillion_device::matmul::bf16::Instructions::name
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instructions: Option<String>,
    /// The name of the model of GPU; empty if processors compute the products.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub gpu: String,
    /// The version of the library of products; absent for an emulated GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub library: Option<String>,
    /// The algorithm of each product of a GPU, by the text of the product's shape.
    #[serde(default)]
    pub algorithms: BTreeMap<String, KeptAlgorithm>,
}

/// The 64 bytes of an algorithm, which are written as 128 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct KeptAlgorithm(pub Algorithm);

impl TryFrom<String> for KeptAlgorithm {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let refused = || {
            let shown: String = text.chars().take(20).collect();
            format!("the algorithm of a product is not 128 hexadecimal digits: {shown:?}")
        };
        let mut bytes = [0; 64];
        if text.len() != 2 * bytes.len() || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(refused());
        }
        for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            let digits = std::str::from_utf8(digits).map_err(|_| refused())?;
            *byte = u8::from_str_radix(digits, 16).map_err(|_| refused())?;
        }
        Ok(Self(bytes))
    }
}

impl From<KeptAlgorithm> for String {
    fn from(KeptAlgorithm(bytes): KeptAlgorithm) -> Self {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn algorithms_are_written_in_hexadecimal_and_read_back() {
        let bytes: Algorithm = std::array::from_fn(|index| (index * 37 + 5) as u8);
        let choice = ProductChoice {
            instructions: None,
            gpu: "some GPU".to_owned(),
            library: Some("13.0".to_owned()),
            algorithms: BTreeMap::from([("tf32 8x8x8".to_owned(), KeptAlgorithm(bytes))]),
        };
        let text = serde_json::to_string(&choice).unwrap();
        assert!(text.contains("\"052a4f74"), "{text}");
        assert_eq!(serde_json::from_str::<ProductChoice>(&text).unwrap(), choice);
        let of_processor = ProductChoice {
            instructions: Some("amx-bf16".to_owned()),
            gpu: String::new(),
            library: None,
            algorithms: BTreeMap::new(),
        };
        let text = serde_json::to_string(&of_processor).unwrap();
        assert!(text.contains("amx-bf16") && !text.contains("gpu"), "{text}");
        assert_eq!(serde_json::from_str::<ProductChoice>(&text).unwrap(), of_processor);
        for wrong in ["05", &"0".repeat(127), &"0".repeat(129), &"g".repeat(128), &"é".repeat(64)]
        {
            let error = KeptAlgorithm::try_from(wrong.to_owned()).unwrap_err();
            assert!(error.contains("128 hexadecimal digits"), "{error}");
        }
    }
}
