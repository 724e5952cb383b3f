//! The answer of a call to a parameter service, which may not have arrived yet.

use crate::error::Result;

/// The answer of a call. The answer of the local client is ready at once; a remote client reads the
/// answer in [`Pending::wait`], so that several calls can be sent before the first answer arrives.
#[must_use = "the error of a call is in its answer; call `wait`"]
pub struct Pending<T> {
    inner: Inner<T>,
}

enum Inner<T> {
    Ready(T),
    Deferred(Box<dyn FnOnce() -> Result<T> + Send>),
}

impl<T> Pending<T> {
    /// Wraps an answer that is ready.
    pub fn ready(answer: T) -> Self {
        Self { inner: Inner::Ready(answer) }
    }

    /// Wraps an answer that `wait` receives later.
    pub fn deferred(wait: impl FnOnce() -> Result<T> + Send + 'static) -> Self {
        Self { inner: Inner::Deferred(Box::new(wait)) }
    }

    /// Waits for the answer and returns it.
    ///
    /// # Errors
    /// Returns the error of the call, if it failed after it was accepted.
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
