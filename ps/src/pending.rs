//! An answer that may still be on its way.

use crate::error::Result;

/// What a call will have answered. The local client answers at once; a remote one reads the answer when
/// it is asked for, so that several calls can be on the wire together.
#[must_use = "a call's error comes with its answer: wait for it"]
pub struct Pending<T> {
    inner: Inner<T>,
}

enum Inner<T> {
    Ready(T),
    Deferred(Box<dyn FnOnce() -> Result<T> + Send>),
}

impl<T> Pending<T> {
    /// An answer that is here.
    pub fn ready(answer: T) -> Self {
        Self { inner: Inner::Ready(answer) }
    }

    /// An answer that `wait` gets.
    pub fn deferred(wait: impl FnOnce() -> Result<T> + Send + 'static) -> Self {
        Self { inner: Inner::Deferred(Box::new(wait)) }
    }

    /// The answer. Blocks until it is here.
    ///
    /// # Errors
    /// What went wrong after the call was accepted.
    pub fn wait(self) -> Result<T> {
        match self.inner {
            Inner::Ready(answer) => Ok(answer),
            Inner::Deferred(wait) => wait(),
        }
    }
}

impl<T> std::fmt::Debug for Pending<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = match self.inner {
            Inner::Ready(_) => "Ready",
            Inner::Deferred(_) => "Deferred",
        };
        f.debug_tuple("Pending").field(&state).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_gives_the_answer_or_its_error() {
        assert_eq!(Pending::ready(1).wait().ok(), Some(1));
        assert_eq!(Pending::deferred(|| Ok(2)).wait().ok(), Some(2));
        let failed: Pending<i32> =
            Pending::deferred(|| Err(crate::Error::Broken { cause: "test".to_owned() }));
        assert!(failed.wait().is_err());
    }
}
