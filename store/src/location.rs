//! The locations of stores, and the URLs that name them.

use std::path::PathBuf;

use object_store::path::Path;

use crate::error::{Error, Result};

/// The protocol of a cloud store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cloud {
    /// The protocol of Amazon S3. Other stores support it too.
    S3,
    /// The protocol of Google Cloud Storage.
    Gcs,
    /// The protocol of Azure Blob Storage and Data Lake Storage.
    Azure,
}

/// The location of a store, parsed from its URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// A folder of this machine.
    Folder(PathBuf),
    /// A prefix in a bucket.
    Bucket {
        /// The protocol of the bucket.
        cloud: Cloud,
        /// The name of the bucket, or of Azure's container.
        bucket: String,
        /// The storage account of Azure, if the URL names one.
        account: Option<String>,
        /// The prefix of the names of all objects. It is empty if the store is the whole bucket.
        prefix: Path,
    },
}

impl Location {
    /// Parses the URL of a store.
    ///
    /// # Errors
    /// Returns [`Error::UnknownStore`] if the URL is invalid. The error describes the problem.
    pub fn parse(url: &str) -> Result<Self> {
        let refuse = |reason: &str| {
            let (url, reason) = (redact_url(url), reason.to_owned());
            Err(Error::UnknownStore { url, reason })
        };
        let Some((scheme, rest)) = url.split_once("://") else {
            // `s3:/bucket` would be a folder called `s3:`, which is never intended.
            let looks_like = |scheme: &&&str| url.starts_with(&format!("{scheme}:"));
            return match ["s3", "s3a", "gs", "az", "abfs", "abfss", "file"].iter().find(looks_like)
            {
                Some(_) => refuse("the two slashes after the colon are missing"),
                None if url.is_empty() => refuse("the URL is empty"),
                None => Ok(Self::Folder(PathBuf::from(url))),
            };
        };
        let cloud = match scheme {
            "file" if rest.starts_with('/') => return Ok(Self::Folder(PathBuf::from(rest))),
            "file" => return refuse("a `file` URL must have three slashes and an absolute path"),
            "s3" | "s3a" => Cloud::S3,
            "gs" => Cloud::Gcs,
            "az" | "abfs" | "abfss" => Cloud::Azure,
            _ => return refuse("the kind of store is unknown"),
        };
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (bucket, account) = match host.split_once('@') {
            None => (host, None),
            Some((container, account)) if scheme.starts_with("abfs") => {
                let account = account.strip_suffix(".dfs.core.windows.net");
                let Some(account) = account.filter(|account| is_name(account)) else {
                    return refuse(
                        "the account must be written as `container@account.dfs.core.windows.net`",
                    );
                };
                (container, Some(account.to_owned()))
            }
            // Credentials are refused, because URLs go into logs and process lists.
            Some(_) => {
                return refuse(
                    "credentials and endpoints do not belong in the URL; set them as environment variables",
                );
            }
        };
        if !is_name(bucket) {
            return refuse(
                "the scheme must be followed by a bucket's name of letters, digits, `-`, `_` and `.`",
            );
        }
        let path = path.trim_end_matches('/');
        if path.contains(['?', '#', '%', '\\']) || path.chars().any(char::is_control) {
            return refuse("a prefix must contain no `?`, `#`, `%`, `\\` or control characters");
        }
        let Ok(prefix) = Path::parse(path) else {
            return refuse("a prefix must consist of plain names with one slash between them");
        };
        Ok(Self::Bucket { cloud, bucket: bucket.to_owned(), account, prefix })
    }
}

/// Returns whether a URL names a bucket, and not a folder. An invalid URL names none.
pub fn is_bucket(url: &str) -> bool {
    matches!(Location::parse(url), Ok(Location::Bucket { .. }))
}

/// Splits the URL of an object, of a prefix or of a glob into the URL of its bucket and the rest,
/// which has no slash at its beginning. Returns `None` for a text without `://`.
pub fn split_object_url(url: &str) -> Option<(&str, &str)> {
    let start = url.find("://")? + 3;
    match url[start..].find('/') {
        Some(at) => Some((&url[..start + at], url[start + at..].trim_start_matches('/'))),
        None => Some((url, "")),
    }
}

fn is_name(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    let begins = text.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric());
    begins && text.len() <= 255 && text.bytes().all(plain)
}

/// Returns an invalid URL without the part before `@` in the host, which may be a secret.
fn redact_url(url: &str) -> String {
    let start = url.find("://").map_or(0, |at| at + 3);
    let host_end = url[start..].find('/').map_or(url.len(), |at| start + at);
    match url[start..host_end].rfind('@') {
        Some(at) if start > 0 => format!("{}…{}", &url[..start], &url[start + at..]),
        _ => url.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bucket(url: &str) -> (Cloud, String, Option<String>, String) {
        match Location::parse(url).unwrap() {
            Location::Bucket { cloud, bucket, account, prefix } => {
                (cloud, bucket, account, prefix.to_string())
            }
            Location::Folder(folder) => panic!("{url} is a folder: {}", folder.display()),
        }
    }

    #[test]
    fn every_kind_of_url() {
        let of =
            |cloud, bucket: &str, prefix: &str| (cloud, bucket.to_owned(), None, prefix.into());
        assert_eq!(bucket("s3://models"), of(Cloud::S3, "models", ""));
        assert_eq!(bucket("s3://models/"), of(Cloud::S3, "models", ""));
        assert_eq!(bucket("s3a://models/a/b/"), of(Cloud::S3, "models", "a/b"));
        assert_eq!(bucket("gs://my.bucket-1/x"), of(Cloud::Gcs, "my.bucket-1", "x"));
        assert_eq!(bucket("az://container/x"), of(Cloud::Azure, "container", "x"));
        assert_eq!(bucket("abfss://container/x"), of(Cloud::Azure, "container", "x"));
        let account = bucket("abfss://data@acme.dfs.core.windows.net/zillion");
        let wanted = (Cloud::Azure, "data".to_owned(), Some("acme".to_owned()), "zillion".into());
        assert_eq!(account, wanted);
        for folder in ["somewhere", "/abs", "./a:b", "file:///abs"] {
            assert!(matches!(Location::parse(folder), Ok(Location::Folder(_))), "{folder}");
        }
    }

    #[test]
    fn invalid_urls_are_refused_with_a_reason() {
        for (url, reason) in [
            ("", "empty"),
            ("file://relative", "three slashes"),
            ("s3:/bucket/prefix", "two slashes"),
            ("http://bucket.s3.amazonaws.com/x", "kind of store is unknown"),
            ("s3://", "bucket's name"),
            ("s3:///prefix", "bucket's name"),
            ("s3://host:9000/bucket", "bucket's name"),
            ("s3://bucket/a//b", "one slash"),
            ("s3://bucket/../b", "plain names"),
            ("s3://bucket/a?region=x", "no `?`"),
            ("abfss://c@acme.example.com/x", "dfs.core.windows.net"),
        ] {
            let message = Location::parse(url).unwrap_err().to_string();
            assert!(message.contains(reason), "{url}: {message}");
        }
    }

    #[test]
    fn the_url_of_an_object_is_split() {
        let split = split_object_url;
        assert_eq!(split("s3://b/a/x*.csv"), Some(("s3://b", "a/x*.csv")));
        assert_eq!(split("s3://b//a"), Some(("s3://b", "a")));
        assert_eq!(split("s3://b"), Some(("s3://b", "")));
        assert_eq!(split("s3://b/"), Some(("s3://b", "")));
        assert_eq!(split("file:///a/b"), Some(("file://", "a/b")));
        assert_eq!(split("a/b"), None);
    }

    #[test]
    fn credentials_in_a_url_are_refused_and_not_repeated() {
        let message = Location::parse("s3://AKIA:hunter2@bucket/x").unwrap_err().to_string();
        assert!(message.contains("do not belong") && !message.contains("hunter2"), "{message}");
        assert!(message.contains("s3://…@bucket/x"), "{message}");
    }

    proptest! {
        #[test]
        fn any_text_is_a_place_or_an_error(url in ".{0,60}") {
            let _ = Location::parse(&url);
        }

        #[test]
        fn a_parsed_url_stays_within_its_bucket(
            scheme in "s3|gs|az|abfss", rest in "[a-z0-9./@:?%#-]{0,40}",
        ) {
            if let Ok(Location::Bucket { bucket, prefix, .. }) =
                Location::parse(&format!("{scheme}://{rest}"))
            {
                prop_assert!(is_name(&bucket));
                prop_assert!(prefix.parts().all(|part| part.as_ref() != ".." && part.as_ref() != "."));
            }
        }
    }
}
