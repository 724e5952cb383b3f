//! Test for import circles: files of a crate that import from each other, directly or through other
//! files.
//!
//! A parent module and its child may import from each other. Two files that implement one idea may
//! do so too. The test refuses larger circles.

use std::collections::{BTreeMap, BTreeSet};

use super::source::{Source, Token, all_sources, crate_folders};

/// The largest number of files that may import from each other in a circle.
const LARGEST_CIRCLE: usize = 2;

/// The keywords that stand before the name of an item.
const DEFINES: [&str; 8] = ["fn", "struct", "enum", "trait", "type", "const", "static", "union"];

#[test]
fn no_circle_of_imports_has_more_than_two_files() {
    let sources = all_sources();
    let mut knots = String::new();
    for folder in crate_folders() {
        let krate = Crate::read(&folder, &sources);
        for circle in krate.circles() {
            if circle.len() > LARGEST_CIRCLE {
                knots += &format!("a circle of {} files in {folder}:\n", circle.len());
                knots += &krate.ties(&circle);
            }
        }
    }
    assert!(knots.is_empty(), "move what they share below them:\n{knots}");
}

/// A module's path inside its crate.
type ModulePath = Vec<String>;

/// A path that a module imports or uses.
struct Import {
    is_public: bool,
    path: Vec<String>,
    alias: Option<String>,
}

#[derive(Default)]
struct Module {
    file: String,
    defines: BTreeSet<String>,
    imports: Vec<Import>,
}

/// The modules of a crate, and the names that each module imports from the other modules.
struct Crate {
    modules: BTreeMap<ModulePath, Module>,
    edges: BTreeMap<ModulePath, BTreeMap<ModulePath, BTreeSet<String>>>,
}

impl Crate {
    fn read(folder: &str, sources: &[Source]) -> Self {
        let top = format!("{folder}/src/");
        let files = || sources.iter().filter(|s| s.path.starts_with(&top) && s.is_production());
        let paths: BTreeSet<ModulePath> =
            files().map(|s| module_path(&s.path[top.len()..])).collect();
        let mut modules = BTreeMap::new();
        for source in files() {
            let path = module_path(&source.path[top.len()..]);
            let children: BTreeSet<String> = paths
                .iter()
                .filter(|other| other.len() == path.len() + 1 && other.starts_with(&path))
                .filter_map(|other| other.last().cloned())
                .collect();
            modules.insert(path, Module::read(source, &children));
        }
        let mut krate = Self { modules, edges: BTreeMap::new() };
        krate.edges = krate.find_edges();
        krate
    }

    fn find_edges(&self) -> BTreeMap<ModulePath, BTreeMap<ModulePath, BTreeSet<String>>> {
        let mut edges: BTreeMap<ModulePath, BTreeMap<ModulePath, BTreeSet<String>>> =
            BTreeMap::new();
        for (from, module) in &self.modules {
            for import in module.imports.iter().filter(|import| !import.is_public) {
                let Some(path) = self.absolute(from, &import.path) else { continue };
                let Some((to, Some(name))) = self.resolve(&path, 0) else { continue };
                let is_family = to == *from || is_parent(&to, from) || is_parent(from, &to);
                if !is_family {
                    edges.entry(from.clone()).or_default().entry(to).or_default().insert(name);
                }
            }
        }
        edges
    }

    /// Converts a path to a path from the root of the crate. Returns `None` if the path leads to
    /// another crate.
    fn absolute(&self, from: &ModulePath, path: &[String]) -> Option<ModulePath> {
        let (first, rest) = path.split_first()?;
        match first.as_str() {
            "crate" => Some(rest.to_vec()),
            "self" => Some([from.as_slice(), rest].concat()),
            "super" => {
                let climbs = path.iter().take_while(|name| *name == "super").count();
                let base = from.get(..from.len().checked_sub(climbs)?)?;
                Some([base, &path[climbs..]].concat())
            }
            child => {
                let is_child =
                    self.modules.contains_key(&[from.as_slice(), &[child.to_owned()]].concat());
                is_child.then(|| [from.as_slice(), path].concat())
            }
        }
    }

    /// Returns the module that defines the item of a path, and the name of the item. The name is
    /// `None` if the path leads to a module. Follows re-exports. Returns `None` if no module is
    /// found.
    fn resolve(&self, path: &[String], depth: usize) -> Option<(ModulePath, Option<String>)> {
        if depth > 8 {
            return None;
        }
        let at = (0..=path.len()).rev().find(|end| self.modules.contains_key(&path[..*end]))?;
        let (module_path, rest) = path.split_at(at);
        let module = &self.modules[module_path];
        let Some(name) = rest.first() else { return Some((module_path.to_vec(), None)) };
        if name == "*" {
            return Some((module_path.to_vec(), Some("*".to_owned())));
        }
        if module.defines.contains(name) {
            return Some((module_path.to_vec(), Some(name.clone())));
        }
        for import in &module.imports {
            let Some(mut target) = self.absolute(&module_path.to_vec(), &import.path) else {
                continue;
            };
            let last = import.alias.as_ref().or(target.last());
            if last.is_some_and(|last| last == "*") {
                target.pop();
                target.push(name.clone());
                if let Some(found) = self.resolve_definition(&target, depth) {
                    return Some(found);
                }
            } else if last == Some(name) && target != path {
                target.extend_from_slice(&rest[1..]);
                if let Some(found) = self.resolve(&target, depth + 1) {
                    return Some(found);
                }
            }
        }
        Some((module_path.to_vec(), Some(name.clone())))
    }

    /// Finds the definition of a name that a glob import may contain. Returns `None` if the module
    /// does not define the name.
    fn resolve_definition(
        &self,
        path: &[String],
        depth: usize,
    ) -> Option<(ModulePath, Option<String>)> {
        let (module, name) = self.resolve(path, depth + 1)?;
        let defined =
            name.as_ref().is_some_and(|name| self.modules[&module].defines.contains(name));
        defined.then_some((module, name))
    }

    /// Returns the groups of modules that import from each other in a circle.
    fn circles(&self) -> Vec<Vec<ModulePath>> {
        let reach: BTreeMap<&ModulePath, BTreeSet<&ModulePath>> =
            self.modules.keys().map(|from| (from, self.reachable(from))).collect();
        let mut circles = BTreeSet::new();
        for (from, reached) in &reach {
            let circle: Vec<ModulePath> = reached
                .iter()
                .filter(|to| reach[**to].contains(*from))
                .map(|to| (*to).clone())
                .collect();
            if circle.len() > 1 {
                circles.insert(circle);
            }
        }
        circles.into_iter().collect()
    }

    fn reachable(&self, from: &ModulePath) -> BTreeSet<&ModulePath> {
        let mut reached = BTreeSet::new();
        let mut open: Vec<&ModulePath> =
            self.edges.get(from).into_iter().flat_map(|e| e.keys()).collect();
        while let Some(next) = open.pop() {
            if reached.insert(next) {
                open.extend(self.edges.get(next).into_iter().flat_map(|e| e.keys()));
            }
        }
        reached
    }

    /// Returns the imports that form a circle, one on each line.
    fn ties(&self, circle: &[ModulePath]) -> String {
        let mut text = String::new();
        for from in circle {
            for (to, names) in self.edges.get(from).into_iter().flatten() {
                if circle.contains(to) {
                    let names: Vec<&str> = names.iter().map(String::as_str).collect();
                    text += &format!(
                        "    {} -> {}: {}\n",
                        self.modules[from].file,
                        self.modules[to].file,
                        names.join(", ")
                    );
                }
            }
        }
        text
    }
}

impl Module {
    fn read(source: &Source, children: &BTreeSet<String>) -> Self {
        let tokens = source.tokens();
        let mut module = Self { file: source.path.clone(), ..Self::default() };
        let mut at = 0;
        while at < tokens.len() {
            let text = tokens[at].text.as_str();
            // A `use<'a>` in a bound names lifetimes and does not import anything.
            let imports = text == "use" && tokens.get(at + 1).is_some_and(|next| next.text != "<");
            if imports {
                let is_public = is_public(&tokens[..at]);
                at = module.read_use(&tokens, at + 1, &mut Vec::new(), is_public);
                continue;
            }
            if DEFINES.contains(&text) {
                module.defines.extend(tokens.get(at + 1).map(|token| token.text.clone()));
            } else if text == "macro_rules" {
                module.defines.extend(tokens.get(at + 2).map(|token| token.text.clone()));
            }
            let begins = matches!(text, "crate" | "super" | "self") || children.contains(text);
            let goes_on = at > 0 && matches!(tokens[at - 1].text.as_str(), ":" | ".");
            let path = if begins && !goes_on { path_at(&tokens[at..]) } else { Vec::new() };
            if path.len() > 1 {
                let path = if children.contains(text) {
                    [vec!["self".to_owned()], path].concat()
                } else {
                    path
                };
                module.imports.push(Import { is_public: false, path, alias: None });
            }
            at += 1;
        }
        module
    }

    /// Reads one tree of a `use` declaration. Returns the position after the tree.
    fn read_use(
        &mut self,
        tokens: &[Token],
        mut at: usize,
        prefix: &mut Vec<String>,
        is_public: bool,
    ) -> usize {
        let depth = prefix.len();
        let mut alias = None;
        while at < tokens.len() {
            match tokens[at].text.as_str() {
                ":" => {}
                "{" => {
                    at += 1;
                    while at < tokens.len() && tokens[at].text != "}" {
                        at = self.read_use(tokens, at, prefix, is_public);
                        match tokens[at].text.as_str() {
                            "," => at += 1,
                            "}" => {}
                            other => panic!("{}: `{other}` in a `use`", self.file),
                        }
                    }
                    prefix.truncate(depth);
                    return at + 1;
                }
                "," | "}" | ";" => break,
                "as" => {
                    at += 1;
                    alias = Some(tokens[at].text.clone());
                }
                name => prefix.push(name.to_owned()),
            }
            at += 1;
        }
        if prefix.last().is_some_and(|name| name == "self") && prefix.len() > 1 {
            prefix.pop();
        }
        self.imports.push(Import { is_public, path: prefix.clone(), alias });
        prefix.truncate(depth);
        at
    }
}

/// Returns the module path of a file below `src`. The path is `a::b` for `a/b.rs` and for
/// `a/b/mod.rs`.
fn module_path(file: &str) -> ModulePath {
    let stem = file.trim_end_matches(".rs");
    let mut path: ModulePath = stem.split('/').map(str::to_owned).collect();
    let last = path.last().map(String::as_str);
    if last == Some("mod") || (path.len() == 1 && matches!(last, Some("lib" | "main"))) {
        path.pop();
    }
    path
}

fn is_parent(parent: &[String], child: &[String]) -> bool {
    child.len() == parent.len() + 1 && child.starts_with(parent)
}

/// Returns whether the tokens before a `use` end with a visibility such as `pub`.
fn is_public(before: &[Token]) -> bool {
    let text = |back: usize| before.len().checked_sub(back).map(|at| before[at].text.as_str());
    text(1) == Some("pub") || (text(1) == Some(")") && (2..6).any(|back| text(back) == Some("pub")))
}

/// Returns the path `a::b::c` at the beginning of the tokens.
fn path_at(tokens: &[Token]) -> Vec<String> {
    let mut path = vec![tokens[0].text.clone()];
    let mut at = 1;
    while let [first, second, name, ..] = &tokens[at.min(tokens.len())..] {
        let is_name = name.text.starts_with(|c: char| c.is_alphabetic() || c == '_');
        if first.text != ":" || second.text != ":" || !is_name || name.is_literal {
            break;
        }
        path.push(name.text.clone());
        at += 3;
    }
    path
}
