//! Traffic: the share of a model's requests that a canary version answers, and the share that a
//! shadow version scores beside the answer.
//!
//! A request that names no version is dealt by its key, so that a user sees one version and not
//! sometimes another. The key is a header of the request; requests without a key are dealt one by
//! one. The hash of the key is compared with the share, so that a larger share keeps the users of
//! the smaller one.
//!
//! A shadow version scores the rows of a request when no request waits, and stops when one comes.
//! Only the encoding of the rows is a part of the request. The differences between the scores of
//! the two versions are recorded in metrics, and no caller sees them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::http::HeaderMap;

use crate::config::{KEY_HEADER, Share, TrafficSettings};
use crate::host::Selector;

/// The number of parts that requests are dealt to.
const PARTS: u64 = 1 << 20;

/// The traffic of all models.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    models: BTreeMap<String, TrafficSettings>,
    /// The number of requests without a key, by which they are dealt.
    dealt: AtomicU64,
}

/// The versions that a request is dealt to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Dealt {
    /// The pointer to the version that is to answer, if it is not the usual one.
    pub(crate) canary: Option<String>,
    /// The pointer to the version that scores beside the answer.
    pub(crate) shadow: Option<String>,
}

impl Traffic {
    /// Creates the traffic of these models.
    pub(crate) fn new(models: BTreeMap<String, TrafficSettings>) -> Self {
        Self { models, dealt: AtomicU64::new(0) }
    }

    /// Deals a request to the versions of a model. A request that names a version gets that one.
    pub(crate) fn deal(&self, model: &str, selector: &Selector, headers: &HeaderMap) -> Dealt {
        let Some(settings) = self.models.get(model) else { return Dealt::default() };
        if *selector != Selector::Default {
            return Dealt::default();
        }
        let header = settings.key_header.as_deref().unwrap_or(KEY_HEADER);
        let part = match headers.get(header) {
            Some(key) => part(model, key.as_bytes()),
            None => {
                let number = self.dealt.fetch_add(1, Ordering::Relaxed);
                part(model, &number.to_le_bytes())
            }
        };
        let label = |share: &Option<Share>, part: u64| {
            let share = share.as_ref()?;
            ((part as f64) < share.share * PARTS as f64).then(|| share.label.clone())
        };
        // The shadow counts from the other end, so that it is not only the canary's users.
        Dealt {
            canary: label(&settings.canary, part),
            shadow: label(&settings.shadow, PARTS - 1 - part),
        }
    }
}

/// Returns the part that a key belongs to. The name of the model is in the hash, so that the
/// canaries of two models have different users.
fn part(model: &str, key: &[u8]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    for byte in model.bytes().chain([0]).chain(key.iter().copied()) {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    // FNV-1a alone mixes its upper bits badly for short keys (finaliser of MurmurHash3).
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    (hash ^ (hash >> 33)) % PARTS
}

#[cfg(test)]
mod tests {
    use super::*;

    fn traffic(canary: f64, shadow: f64) -> Traffic {
        let share = |label: &str, share| Some(Share { label: label.to_owned(), share });
        let (canary, shadow) = (share("canary", canary), share("next", shadow));
        let settings = TrafficSettings { canary, shadow, key_header: None };
        settings.check().unwrap();
        Traffic::new([("m".to_owned(), settings)].into())
    }

    fn deal(traffic: &Traffic, key: &str) -> Dealt {
        let headers = HeaderMap::from_iter([(
            axum::http::HeaderName::from_static(KEY_HEADER),
            key.parse().unwrap(),
        )]);
        traffic.deal("m", &Selector::Default, &headers)
    }

    #[test]
    fn a_key_keeps_its_version_and_a_larger_share_keeps_its_keys() {
        let (small, large) = (traffic(0.05, 0.0), traffic(0.2, 0.0));
        let mut counts = [0, 0];
        for user in 0..10_000 {
            let key = format!("user-{user}");
            let dealt = [deal(&small, &key), deal(&large, &key)];
            assert_eq!(dealt[0], deal(&small, &key));
            assert!(dealt[0].canary.is_none() || dealt[1].canary.is_some());
            for (count, dealt) in counts.iter_mut().zip(&dealt) {
                *count += usize::from(dealt.canary.is_some());
            }
        }
        assert!((400..600).contains(&counts[0]) && (1850..2150).contains(&counts[1]), "{counts:?}");
    }

    #[test]
    fn requests_without_a_key_are_dealt_one_by_one() {
        let traffic = traffic(0.5, 1.0);
        let dealt = |selector| traffic.deal("m", &selector, &HeaderMap::new());
        let canaries = (0..1000).filter(|_| dealt(Selector::Default).canary.is_some()).count();
        assert!((400..600).contains(&canaries), "{canaries}");
        assert_eq!(dealt(Selector::Default).shadow.as_deref(), Some("next"));
        assert_eq!(dealt(Selector::Label("x".to_owned())), Dealt::default());
        let other = traffic.deal("n", &Selector::Default, &HeaderMap::new());
        assert_eq!(other, Dealt::default());
    }

    #[test]
    fn nothing_and_everything_are_shares() {
        let (none, all) = (traffic(0.0, 0.0), traffic(1.0, 1.0));
        for user in 0..1000 {
            let key = user.to_string();
            assert_eq!(deal(&none, &key), Dealt::default());
            assert!(deal(&all, &key).canary.is_some() && deal(&all, &key).shadow.is_some());
        }
        let share = Share { label: "x".to_owned(), share: 1.5 };
        let wrong = TrafficSettings { canary: Some(share), ..TrafficSettings::default() };
        assert!(wrong.check().unwrap_err().contains("1.5"));
    }
}
