//! The environment variables as one value that callers pass to stores.
//!
//! Stores take their credentials and settings only from this value and never from the process.
//! Therefore a test can open two stores with different settings.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

/// A set of environment variables. A variable with an empty value counts as not set.
#[derive(Clone, Default)]
pub struct Environment {
    variables: BTreeMap<String, String>,
}

impl Environment {
    /// Returns the variables of this process. Leaves out variables that are not valid UTF-8,
    /// because no setting can have such a value.
    pub fn process() -> Self {
        std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect()
    }

    /// Returns the value of a variable, or `None` if it is not set.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// Returns the value of the first of these variables that is set, or `None` if none is set.
    pub(crate) fn first(&self, names: &[&str]) -> Option<&str> {
        names.iter().find_map(|name| self.get(name))
    }

    /// Returns the home folder of the user from the variable `HOME`, or `None` if it is not set.
    pub fn home(&self) -> Option<PathBuf> {
        self.get("HOME").map(PathBuf::from)
    }

    /// Yields the names and the values of all variables.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        let all = self.variables.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        all.filter(|(_, value)| !value.is_empty())
    }
}

impl FromIterator<(String, String)> for Environment {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(variables: I) -> Self {
        Self { variables: variables.into_iter().collect() }
    }
}

impl<const N: usize> From<[(&str, &str); N]> for Environment {
    fn from(variables: [(&str, &str); N]) -> Self {
        variables.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }
}

/// Writes only the names of the variables, because their values may be secrets.
impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.variables.keys()).finish()
    }
}
