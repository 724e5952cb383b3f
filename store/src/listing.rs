//! The listing of a folder of a store, with its folders and its objects.

use std::time::SystemTime;

/// The contents of a folder of a store, sorted by name in ascending order. The names do not contain
/// the path of the folder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// The names of the folders in the folder.
    pub folders: Vec<String>,
    /// The objects in the folder.
    pub objects: Vec<Listed>,
}

/// An object in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The last part of the object's name, after the last `/`.
    pub name: String,
    /// The size of the object in bytes.
    pub bytes: u64,
    /// The time of the last write to the object.
    pub modified: SystemTime,
}

impl Listed {
    pub(crate) fn of(meta: &object_store::ObjectMeta) -> Self {
        Self {
            name: meta.location.filename().unwrap_or_default().to_owned(),
            bytes: meta.size,
            modified: meta.last_modified.into(),
        }
    }
}

impl Listing {
    pub(crate) fn of(listed: &object_store::ListResult) -> Self {
        let mut folders: Vec<String> =
            listed.common_prefixes.iter().filter_map(|p| Some(p.filename()?.to_owned())).collect();
        folders.sort_unstable();
        let mut objects: Vec<Listed> = listed.objects.iter().map(Listed::of).collect();
        objects.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Self { folders, objects }
    }
}

/// Returns the name of an object that is named by the hash of its bytes. The objects of a folder
/// are divided among folders by the first two letters of their names, because a folder of a local
/// store becomes slow with very many files.
pub fn fan_out(folder: &str, name: &str) -> String {
    format!("{folder}/{}/{name}", name.get(..2).unwrap_or("__"))
}
