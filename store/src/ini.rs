//! The format of AWS's files `credentials` and `config`. They have sections of `key = value` lines.
//! If a key has no value, the indented lines below it are keys of a second level.
//!
//! An error gives the number of the line but not its text, because the text may contain a secret.
//! The crates `rust-ini` and `configparser` were rejected: they treat keys of the second level as
//! keys of the first level, and their errors contain the line.

use std::collections::BTreeMap;

/// The sections by name. If two sections have the same name, they are merged, and values of the
/// later section replace values of the earlier one.
pub(crate) type Sections = BTreeMap<String, Section>;

/// The values of a section by key. A key of the second level has the form `key.inner`.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Section {
    values: BTreeMap<String, String>,
}

impl Section {
    /// Returns the value of a key, or `None` if the key is absent or its value is empty.
    pub(crate) fn get(&self, key: &str) -> Option<&str> {
        self.values.get(key).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// Yields the keys of the section, including keys with an empty value.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &str> {
        self.values.keys().map(String::as_str)
    }

    /// Adds the values of another section. They replace the values of this section that have the
    /// same keys.
    pub(crate) fn extend(&mut self, other: &Self) {
        self.values.extend(other.values.clone());
    }
}

/// Writes only the keys, because the values may be secrets.
impl std::fmt::Debug for Section {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.values.keys()).finish()
    }
}

/// Parses the text of a file into sections.
///
/// # Errors
/// Returns the number of the first line that does not have this format, counted from 1, and the
/// problem of this line.
pub(crate) fn parse(text: &str) -> Result<Sections, (usize, &'static str)> {
    let mut sections = Sections::new();
    let mut section: Option<&mut Section> = None;
    // The key that indented lines belong to.
    let mut outer: Option<String> = None;
    for (index, line) in text.trim_start_matches('\u{feff}').lines().enumerate() {
        let refuse = |what| Err((index + 1, what));
        let is_indented = line.starts_with([' ', '\t']);
        let line = strip_comment(line).trim();
        if line.is_empty() {
            continue;
        }
        if let Some(rest) = line.strip_prefix('[') {
            let Some(name) = rest.strip_suffix(']') else {
                return refuse("the name of the section does not end with `]`; add it");
            };
            let name = name.split_whitespace().collect::<Vec<_>>().join(" ");
            section = Some(sections.entry(name).or_default());
            outer = None;
            continue;
        }
        let Some((key, value)) = line.split_once('=') else {
            return refuse(
                "the line is neither `[section]` nor `key = value`; correct or remove it",
            );
        };
        let (key, value) = (key.trim().to_ascii_lowercase(), value.trim());
        if key.is_empty() {
            return refuse("the key before the `=` is missing; add it");
        }
        let Some(section) = section.as_mut() else {
            return refuse("the line is before the first section; add a `[section]` above it");
        };
        let key = match (&outer, is_indented) {
            (Some(outer), true) => format!("{outer}.{key}"),
            _ => {
                outer = value.is_empty().then(|| key.clone());
                key
            }
        };
        section.values.insert(key, value.to_owned());
    }
    Ok(sections)
}

/// Returns a line without its comment. A comment begins with `#` or `;`, at the start of the line
/// or after a space.
fn strip_comment(line: &str) -> &str {
    let mut before = ' ';
    for (at, letter) in line.char_indices() {
        if matches!(letter, '#' | ';') && before.is_whitespace() {
            return &line[..at];
        }
        before = letter;
    }
    line
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_file_as_tools_write_it() {
        let text = "\u{feff}# a comment\n[default]\naws_access_key_id = AKIA\n\
                    AWS_SECRET_ACCESS_KEY=a/b+c==#d ; comment\n\n[ profile   dev ]\nregion=eu-west-1\n\
                    s3 =\n  endpoint_url = http://x\n  max=1\noutput = json\n[default]\nregion = z\n";
        let sections = parse(text).unwrap();
        let default = &sections["default"];
        assert_eq!(default.get("aws_access_key_id"), Some("AKIA"));
        assert_eq!(default.get("aws_secret_access_key"), Some("a/b+c==#d"));
        assert_eq!(default.get("region"), Some("z"));
        let dev = &sections["profile dev"];
        assert_eq!(dev.get("s3.endpoint_url"), Some("http://x"));
        assert_eq!(dev.get("output"), Some("json"));
        assert_eq!(dev.get("s3"), None);
    }

    #[test]
    fn errors_name_the_line_without_its_content() {
        for (text, line) in [("[a]\nhunter2", 2), ("hunter2=x", 1), ("[a\n", 1), ("[a]\n\n=x", 3)] {
            let (found, what) = parse(text).unwrap_err();
            assert_eq!(found, line, "{text}");
            assert!(!what.contains("hunter2"));
        }
        assert!(!format!("{:?}", parse("[a]\nkey=hunter2").unwrap()).contains("hunter2"));
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "[\\[\\]=#; \t\na-z]{0,80}") {
            let lines = text.lines().count();
            if let Err((line, _)) = parse(&text) {
                prop_assert!((1..=lines).contains(&line));
            }
        }

        #[test]
        fn written_files_are_read_back(
            written in prop::collection::btree_map(
                "[a-z]{1,8}( [a-z]{1,5})?",
                prop::collection::btree_map("[a-z_]{1,12}", "([!-~&&[^#;]][ -~&&[^#;]]{0,10}[!-~&&[^#;]])?", 0..5),
                0..4,
            ),
            indent in any::<bool>(),
        ) {
            let mut text = String::new();
            for (name, values) in &written {
                text.push_str(&format!("[{name}] # {name}\n"));
                for (key, value) in values {
                    // Indented lines belong to the key above only if that key has no value.
                    let pad = if indent && values.values().all(|v| !v.is_empty()) { "  " } else { "" };
                    text.push_str(&format!("{pad}{key} = {value}\n"));
                }
            }
            let read = parse(&text).unwrap();
            prop_assert_eq!(read.len(), written.len());
            for (name, values) in &written {
                let section = &read[name.as_str()];
                prop_assert_eq!(section.keys().count(), values.len());
                for (key, value) in values {
                    let wanted = Some(value.as_str()).filter(|value| !value.is_empty());
                    prop_assert_eq!(section.get(key), wanted);
                }
            }
        }
    }
}
