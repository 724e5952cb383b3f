//! The expansion of the URL of a file, a folder or a glob in a bucket to the URLs of files.
//!
//! The rules are those of files of this machine ([`crate::files`]): the files of a glob and of a
//! folder are sorted like paths, a folder stands for all files below it, and names in it that begin
//! with `.` or `_` are left out.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use zillion_store::{Depth, Object};

use super::Stores;
use super::blocks::Blocks;
use crate::error::{ReaderError, Result};

fn is_key_of_object(key: &str) -> bool {
    !key.is_empty() && !key.ends_with('/')
}

/// Returns the place of the first glob character of a key, or `None` if the key is no glob.
fn first_special(key: &str) -> Option<usize> {
    key.find(['*', '?', '['])
}

impl Stores {
    /// Asks for the states of the URLs that may name an object. A name that looks like a glob may
    /// also be the name of an object.
    ///
    /// # Errors
    /// Returns an error if a URL is invalid, or if the store refuses a request.
    pub(crate) fn inspect_all<'a>(&self, urls: impl Iterator<Item = &'a str>) -> Result<()> {
        let mut paths = Vec::new();
        for url in urls {
            if is_key_of_object(self.attach(url)?.2) {
                paths.push(Path::new(url));
            }
        }
        self.inspect(paths.into_iter())
    }

    /// Returns the files that a URL stands for, sorted. The list is empty if there is none. The URL
    /// must have been given to [`Stores::inspect_all`].
    ///
    /// # Errors
    /// Returns an error if the URL is invalid, if it is not a valid glob, or if the bucket cannot
    /// be listed.
    pub(crate) fn expand(&self, url: &str) -> Result<Vec<PathBuf>> {
        let path = PathBuf::from(url);
        let (blocks, bucket, key) = self.attach(url)?;
        if is_key_of_object(key) && self.find(url).is_some() {
            return Ok(vec![path]);
        }
        let found = match first_special(key) {
            None => list_folder(&blocks, url, key.trim_end_matches('/'))?,
            Some(at) => list_matches(&blocks, url, key, at)?,
        };
        let mut files = Vec::with_capacity(found.len());
        for object in found {
            let url = format!("{bucket}/{}", object.key);
            self.remember(&url, object, &blocks);
            files.push(PathBuf::from(url));
        }
        // The order of paths and not of texts, as for files of this machine.
        files.sort_unstable();
        files.dedup();
        Ok(files)
    }
}

fn list(blocks: &Arc<Blocks>, url: &str, prefix: &str, depth: Depth) -> Result<Vec<Object>> {
    let failed = ReaderError::io("list the bucket", Path::new(url));
    let listed = blocks.bucket().list(prefix, depth).map_err(|e| failed(io::Error::other(e)))?;
    let mut objects = listed.objects;
    if depth == Depth::One {
        for folder in listed.folders {
            // A folder beside the files may match as a whole.
            objects.push(Object {
                key: format!("{folder}/"),
                bytes: 0,
                modified: std::time::UNIX_EPOCH,
                tag: None,
            });
        }
    }
    Ok(objects)
}

/// Lists the files of a folder and its folders, without names that begin with `.` or `_`.
fn list_folder(blocks: &Arc<Blocks>, url: &str, folder: &str) -> Result<Vec<Object>> {
    let prefix = if folder.is_empty() { String::new() } else { format!("{folder}/") };
    let mut objects = list(blocks, url, &prefix, Depth::All)?;
    drop_markers(&mut objects);
    objects.retain(|object| is_data_below(&object.key, prefix.len()));
    Ok(objects)
}

/// Removes the empty objects by which web consoles show folders.
fn drop_markers(objects: &mut Vec<Object>) {
    let folders: std::collections::HashSet<String> = objects
        .iter()
        .flat_map(|object| object.key.match_indices('/').map(|(at, _)| object.key[..at].to_owned()))
        .collect();
    objects.retain(|object| object.bytes > 0 || !folders.contains(&object.key));
}

/// Returns whether no name of a key behind byte `start` begins with `.` or `_`.
fn is_data_below(key: &str, start: usize) -> bool {
    let rest = key.get(start..).unwrap_or_default();
    !rest.is_empty() && rest.split('/').all(|name| !name.starts_with(['.', '_']))
}

/// Lists the files that match a glob, whose first special character is at byte `at`.
fn list_matches(blocks: &Arc<Blocks>, url: &str, key: &str, at: usize) -> Result<Vec<Object>> {
    let pattern = glob::Pattern::new(key).map_err(|e| ReaderError::BadPattern {
        problem: e.msg.to_owned(),
        pattern: url.to_owned(),
    })?;
    let matcher = Matcher { pattern };
    // Only the last name is a pattern, so folders need not be listed.
    let is_shallow = !key[at..].contains('/') && !key[at..].contains("**");
    if !is_shallow {
        let mut objects = list(blocks, url, &key[..at], Depth::All)?;
        drop_markers(&mut objects);
        objects.retain(|object| matcher.accepts(&object.key));
        return Ok(objects);
    }
    let mut found = Vec::new();
    for object in list(blocks, url, &key[..at], Depth::One)? {
        match object.key.strip_suffix('/') {
            Some(folder) if matcher.matches(folder) => {
                found.extend(list_folder(blocks, url, folder)?);
            }
            None if matcher.matches(&object.key) => found.push(object),
            _ => {}
        }
    }
    drop_markers(&mut found);
    Ok(found)
}

/// A glob with the options that globs of local files have.
struct Matcher {
    pattern: glob::Pattern,
}

impl Matcher {
    fn matches(&self, key: &str) -> bool {
        let options = glob::MatchOptions {
            case_sensitive: true,
            require_literal_separator: true,
            require_literal_leading_dot: true,
        };
        self.pattern.matches_with(key, options)
    }

    /// Returns whether a key matches, or lies in a folder that matches.
    fn accepts(&self, key: &str) -> bool {
        let mut folders = key.match_indices('/').map(|(at, _)| at);
        self.matches(key)
            || folders.any(|at| self.matches(&key[..at]) && is_data_below(key, at + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepted<'a>(pattern: &str, keys: &[&'a str]) -> Vec<&'a str> {
        let matcher = Matcher { pattern: glob::Pattern::new(pattern).unwrap() };
        keys.iter().copied().filter(|key| matcher.accepts(key)).collect()
    }

    #[test]
    fn globs_match_as_they_do_for_local_files() {
        let keys = ["d/1.csv", "d/.2.csv", "d/day=1/3.csv", "d/day=1/_SUCCESS", "d/day=2/x/4.csv"];
        assert_eq!(accepted("d/*.csv", &keys), ["d/1.csv"]);
        assert_eq!(accepted("d/day=*", &keys), ["d/day=1/3.csv", "d/day=2/x/4.csv"]);
        assert_eq!(accepted("d/day=*/*.csv", &keys), ["d/day=1/3.csv"]);
        assert_eq!(accepted("d/**/*.csv", &keys), ["d/1.csv", "d/day=1/3.csv", "d/day=2/x/4.csv"]);
        assert_eq!(accepted("d/day=[2-9]/**/*.csv", &keys), ["d/day=2/x/4.csv"]);
    }

    #[test]
    fn markers_of_folders_are_no_files() {
        let object = |key: &str, bytes| Object {
            key: key.to_owned(),
            bytes,
            modified: std::time::UNIX_EPOCH,
            tag: None,
        };
        let mut objects = vec![object("d", 0), object("d/a", 5), object("d/empty", 0)];
        drop_markers(&mut objects);
        let keys: Vec<&str> = objects.iter().map(|o| o.key.as_str()).collect();
        assert_eq!(keys, ["d/a", "d/empty"]);
    }
}
