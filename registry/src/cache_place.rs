//! The default folder for the cache of a registry.

use std::path::PathBuf;

use zillion_store::{Environment, Error as StoreError, Location};

use crate::error::Result;

/// The number of characters of the URL's hash in the path of the cache.
const LETTERS: usize = 16;

/// Returns the default folder for the cache of a registry. For a local registry, it is `.cache` in
/// the registry. For a remote registry, it is `zillion/<hash of the URL>` in the user's folder for
/// caches (`XDG_CACHE_HOME`, or `.cache` in the home folder).
///
/// # Errors
/// Returns an error if the URL is invalid. Also returns an error if the registry is remote and the
/// environment has neither variable.
pub fn default_cache(url: &str, environment: &Environment) -> Result<PathBuf> {
    if let Location::Folder(folder) = Location::parse(url)? {
        return Ok(folder.join(".cache"));
    }
    let caches = environment.get("XDG_CACHE_HOME").map(PathBuf::from);
    // The specification of this variable says that a relative path does not count.
    let caches = caches.filter(|path| path.is_absolute());
    let Some(caches) = caches.or_else(|| environment.home().map(|home| home.join(".cache"))) else {
        return Err(StoreError::StoreSetting {
            setting: "cache".to_owned(),
            reason: "a remote registry needs a folder for its files, but neither XDG_CACHE_HOME nor HOME is set; \
                     set one of them, or name the folder"
                .to_owned(),
        }
        .into());
    };
    let hash = blake3::hash(url.trim_end_matches('/').as_bytes()).to_hex();
    Ok(caches.join("zillion").join(&hash[..LETTERS]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_cache_depends_on_the_registry() {
        let none = Environment::default();
        assert_eq!(default_cache("/a/b", &none).unwrap(), PathBuf::from("/a/b/.cache"));
        assert_eq!(default_cache("file:///a", &none).unwrap(), PathBuf::from("/a/.cache"));
        let said = default_cache("s3://b/x", &none).unwrap_err().to_string();
        assert!(said.contains("cache: "), "{said}");
        let home = Environment::from([("HOME", "/home/x"), ("XDG_CACHE_HOME", "relative")]);
        let place = default_cache("s3://b/x", &home).unwrap();
        assert!(place.starts_with("/home/x/.cache/zillion"), "{}", place.display());
        assert_eq!(default_cache("s3://b/x/", &home).unwrap(), place);
        assert_ne!(default_cache("s3://b/y", &home).unwrap(), place);
        let xdg = Environment::from([("HOME", "/home/x"), ("XDG_CACHE_HOME", "/var/cache")]);
        assert!(default_cache("s3://b/x", &xdg).unwrap().starts_with("/var/cache/zillion"));
    }
}
