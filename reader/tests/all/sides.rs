//! Tests of side tables, sequences and crosses. Joined rows must be equal to the rows of a file
//! that already contains the joined columns.

use std::fmt::Write as _;
use std::sync::Arc;

use arrow_array::builder::{Int64Builder, ListBuilder};
use arrow_array::{ArrayRef, Float64Array, Int64Array, StringArray};
use zillion_feature::random::{combine, mix64};
use zillion_feature::{Cursor, FeatureKey, Schema, TableId, cross_key};
use zillion_reader::{BatchOrder, Dataset, SideTables, statistics, vocabulary};

use crate::fixture::{Folder, PLAIN, read, rows, schema, workers};

const ROWS: u64 = 3000;
const USERS: u64 = 40;

/// Returns a schema with all kinds of features. If `side` is true, some of them read a side table.
fn job(side: bool) -> Schema {
    let from = if side { "side = 'users'\nby = 'who'" } else { "" };
    let table = match side {
        true => "[side.users]\npath = 'users.csv'\nkey = 'user'\ntype = 'string'",
        false => "",
    };
    schema(&format!(
        "[features.item]
        kind = 'id'
        [features.city]
        kind = 'id'
        type = 'string'
        {from}
        [features.income]
        kind = 'numeric'
        transform = 'standardise'
        missing = -1.5
        {from}
        [features.age]
        kind = 'bucketized'
        buckets = 4
        {from}
        [features.recent]
        kind = 'sequence'
        max_len = 3
        table = 'item'
        {from}
        [features.liked]
        kind = 'ids'
        column = 'recent'
        pooling = 'max'
        {from}
        [features.city_age]
        kind = 'cross'
        of = ['city', 'age']
        [features.item_city_age]
        kind = 'cross'
        of = ['city_age', 'item']
        [labels.label]
        {table}"
    ))
}

#[derive(Clone)]
struct User {
    city: Option<String>,
    income: Option<f64>,
    age: Option<i64>,
    recent: Vec<i64>,
}

fn user(id: u64) -> User {
    let draw = |salt: u64| mix64(combine(id, salt));
    User {
        city: (!draw(1).is_multiple_of(5)).then(|| format!("c{}", draw(2) % 7)),
        income: (!draw(3).is_multiple_of(4)).then(|| (draw(4) % 10_000) as f64 / 7.0),
        age: (!draw(5).is_multiple_of(6)).then(|| (draw(6) % 90) as i64),
        recent: (0..draw(7) % 7).map(|i| (draw(8 + i) % 50) as i64).collect(),
    }
}

/// Returns the user of a row, or `None` if the row has no user. Some users are not in the side
/// table.
fn who(row: u64) -> Option<u64> {
    let draw = mix64(row);
    (!draw.is_multiple_of(11)).then_some(draw % (USERS + 4))
}

fn cells(user: &User) -> String {
    let text = |x: Option<String>| x.unwrap_or_default();
    let recent: Vec<String> = user.recent.iter().map(ToString::to_string).collect();
    let (income, age) = (user.income.map(|x| x.to_string()), user.age.map(|x| x.to_string()));
    format!("{},{},{},{}", text(user.city.clone()), text(income), text(age), recent.join("|"))
}

fn users_csv() -> String {
    let mut csv = "user,city,income,age,recent\n".to_owned();
    for id in 0..USERS {
        writeln!(csv, "u{id},{}", cells(&user(id))).unwrap();
    }
    csv
}

fn data_csv(joined: bool) -> String {
    let mut csv = "item,label,who".to_owned();
    csv.push_str(if joined { ",city,income,age,recent\n" } else { "\n" });
    let nobody = User { city: None, income: None, age: None, recent: Vec::new() };
    for row in 0..ROWS {
        let name = who(row).map(|id| format!("u{id}")).unwrap_or_default();
        write!(csv, "{},{},{name}", mix64(row + 7) % 50, row % 2).unwrap();
        if joined {
            let known = who(row).filter(|&id| id < USERS).map_or(nobody.clone(), user);
            write!(csv, ",{}", cells(&known)).unwrap();
        }
        csv.push('\n');
    }
    csv
}

fn write_parquet(folder: &Folder) {
    let numbers = |f: &dyn Fn(u64) -> i64| -> ArrayRef {
        Arc::new(Int64Array::from_iter_values((0..ROWS).map(f)))
    };
    let names = (0..ROWS).map(|row| who(row).map(|id| format!("u{id}")));
    let columns = vec![
        ("item", numbers(&|row| (mix64(row + 7) % 50) as i64)),
        ("label", numbers(&|row| (row % 2) as i64)),
        ("who", Arc::new(StringArray::from_iter(names)) as ArrayRef),
    ];
    folder.write_parquet("data.parquet", columns, 700);
    let users: Vec<User> = (0..USERS).map(user).collect();
    let mut recent = ListBuilder::new(Int64Builder::new());
    for user in &users {
        user.recent.iter().for_each(|&item| recent.values().append_value(item));
        recent.append(true);
    }
    let keys = (0..USERS).map(|id| format!("u{id}"));
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("user", Arc::new(StringArray::from_iter_values(keys))),
        ("city", Arc::new(StringArray::from_iter(users.iter().map(|u| u.city.clone())))),
        ("income", Arc::new(Float64Array::from_iter(users.iter().map(|u| u.income)))),
        ("age", Arc::new(Int64Array::from_iter(users.iter().map(|u| u.age)))),
        ("recent", Arc::new(recent.finish())),
    ];
    folder.write_parquet("users.parquet", columns, 16);
}

/// Returns three datasets with the same rows: one file that was joined in advance, and two files
/// that the reader joins with a side table, as text and as Parquet.
fn datasets() -> (Folder, [Dataset; 3]) {
    let folder = Folder::new();
    folder.write("users.csv", users_csv());
    folder.write("data.csv", data_csv(false));
    folder.write("joined.csv", data_csv(true));
    write_parquet(&folder);
    let mut in_parquet = job(true);
    in_parquet.sides[0].path = "users.parquet".into();
    let open = |file, job: &Schema| {
        let dataset = folder.open(&[file], job).unwrap();
        let statistics = statistics(&dataset, &workers(2)).unwrap();
        dataset.with_statistics(statistics)
    };
    let datasets = [
        open("joined.csv", &job(false)),
        open("data.csv", &job(true)),
        open("data.parquet", &in_parquet),
    ];
    (folder, datasets)
}

#[test]
fn a_join_is_the_joined_file_in_text_and_in_parquet() {
    let (_folder, [joined, csv, parquet]) = datasets();
    let reference = rows(&read(&joined, PLAIN, Cursor::default(), 1).unwrap());
    assert_eq!(reference.len() as u64, ROWS);
    let shuffled = BatchOrder { seed: 3, shuffle: true, batch_rows: 64, drop_last: false };
    let joined_shuffled = read(&joined, shuffled, Cursor::default(), 1).unwrap();
    let absent = (0..ROWS).filter(|&row| who(row).is_none_or(|id| id >= USERS)).count() as u64;
    for (dataset, name) in [(&csv, "csv"), (&parquet, "parquet")] {
        for threads in [1, 3] {
            let batches = read(dataset, PLAIN, Cursor::default(), threads).unwrap();
            assert_eq!(rows(&batches), reference, "{name}");
            let missing: u64 = batches.iter().map(|(batch, _)| batch.side_missing[0]).sum();
            assert_eq!(missing, absent, "{name}");
        }
    }
    // Each text file is one unit, so the shuffled order is the same.
    assert_eq!(rows(&read(&csv, shuffled, Cursor::default(), 2).unwrap()), rows(&joined_shuffled));
}

#[test]
fn cursors_resume_in_joined_data() {
    let (_folder, [_, csv, parquet]) = datasets();
    let order = BatchOrder { seed: 3, shuffle: true, batch_rows: 64, drop_last: false };
    for dataset in [csv, parquet] {
        let all = read(&dataset, order, Cursor { epoch: 2, row: 0 }, 2).unwrap();
        for at in [0, 7, all.len() - 2] {
            let rest = read(&dataset, order, all[at].1, 1).unwrap();
            assert_eq!(rest, all[at + 1..]);
        }
    }
}

#[test]
fn passes_see_joined_values() {
    let (_folder, [joined, csv, parquet]) = datasets();
    let tables = joined.schema().tables.clone();
    let wanted: Vec<(TableId, usize)> =
        (0..tables.len() as u16).map(|t| (TableId(t), 10_000)).collect();
    let reference = vocabulary(&joined, &wanted, &workers(1)).unwrap();
    for (keys, table) in reference.iter().zip(&tables) {
        assert!(keys.len() > 3, "{table}: {}", keys.len());
    }
    let found = statistics(&joined, &workers(1)).unwrap();
    assert_eq!(found.columns["income"].count, {
        let income = |row| who(row).filter(|&id| id < USERS).and_then(|id| user(id).income);
        (0..ROWS).filter(|&row| income(row).is_some()).count() as u64
    });
    for dataset in [csv, parquet] {
        assert_eq!(statistics(&dataset, &workers(3)).unwrap(), found);
        assert_eq!(vocabulary(&dataset, &wanted, &workers(2)).unwrap(), reference);
        // A pass for the cross alone also reads the members of the cross.
        let cross = tables.iter().position(|t| t == "item_city_age").unwrap();
        let only = vocabulary(&dataset, &wanted[cross..=cross], &workers(1)).unwrap();
        assert_eq!(only, reference[cross..=cross]);
        let error = vocabulary(&dataset, &[(wanted[cross].0, 5)], &workers(1)).unwrap_err();
        assert!(error.to_string().contains("more than 5 distinct keys"), "{error}");
    }
}

#[test]
fn a_sequence_keeps_the_most_recent() {
    let folder = Folder::new();
    folder.write("a.csv", "history,n,label\n1|2|3|4,5,0\n,6,1\n9,7,0\n");
    let job = schema(
        "[features.history]
        kind = 'sequence'
        max_len = 2
        [features.n]
        kind = 'id'
        [features.m]
        kind = 'id'
        column = 'n'
        [features.x]
        kind = 'cross'
        of = ['n', 'm']
        [labels.label]",
    );
    let dataset = folder.open(&["a.csv"], &job).unwrap();
    let (batch, _) = &read(&dataset, PLAIN, Cursor::default(), 1).unwrap()[0];
    let key = FeatureKey::from_i64;
    assert_eq!(batch.sparse[0].offsets.as_deref(), Some([0, 2, 2, 3].as_slice()));
    assert_eq!(batch.sparse[0].keys, [key(3), key(4), key(9)]);
    assert_eq!(batch.sparse[3].keys[0], cross_key([key(5), key(5)]));
    assert_eq!(batch.sparse[3].keys.len(), 3);
}

#[test]
fn side_tables_are_read_once_for_all_datasets() {
    let folder = Folder::new();
    folder.write("u.csv", "user,age\n1,30\n2,40\n");
    folder.write("a.csv", "user,label\n2,1\n");
    let job = sides_job("kind = 'numeric'", "u.csv");
    let sides = SideTables::load(&folder.config, &job).unwrap();
    std::fs::remove_file(folder.path("u.csv")).unwrap();
    let labels = zillion_reader::Labels::Required;
    let files = [folder.path("a.csv")];
    let dataset = Dataset::open_beside(&folder.config, &files, &job, labels, &sides).unwrap();
    let (batch, _) = &read(&dataset, PLAIN, Cursor::default(), 1).unwrap()[0];
    assert_eq!(batch.numeric, [[40.0]]);
}

#[test]
fn a_side_table_may_be_several_files_in_another_format() {
    let folder = Folder::with("header = ['user', 'label']\ndelimiter = ';'");
    folder.write("a.csv", "2;1\n5;0\n");
    let column = |ids: Vec<i64>| -> ArrayRef { Arc::new(Int64Array::from(ids)) };
    std::fs::create_dir(folder.path("users")).unwrap();
    for (name, ids) in [("users/0.parquet", vec![1, 2]), ("users/1.parquet", vec![5])] {
        let ages = column(ids.iter().map(|id| id * 10).collect());
        folder.write_parquet(name, vec![("user", column(ids)), ("age", ages)], 10);
    }
    let dataset = folder.open(&["a.csv"], &sides_job("kind = 'numeric'", "users")).unwrap();
    let (batch, _) = &read(&dataset, PLAIN, Cursor::default(), 1).unwrap()[0];
    assert_eq!(batch.numeric, [[20.0, 50.0]]);
}

fn sides_job(age: &str, path: &str) -> Schema {
    schema(&format!(
        "[features.age]\n{age}\nside = 'users'\n[labels.label]
        [side.users]\npath = '{path}'\nkey = 'user'"
    ))
}

#[test]
fn bad_side_tables_and_keys_are_named() {
    let folder = Folder::new();
    folder.write("a.csv", "user,label\n1,0\n3,1\n");
    folder.write("null.csv", "user,label\n1,0\n,1\n");
    folder.write("text.csv", "user,label\nu1,0\n");
    folder.write("none.csv", "usr,label\n1,0\n");
    folder.write("u.csv", "user,age\n1,30\n2,40\n");
    folder.write("twice.csv", "user,age\n1,30\n2,40\n3,5\n2,41\n");
    folder.write("nokey.csv", "user,age\n1,30\n,40\n");
    folder.write("holes.csv", "user,age\n1,30\n3,\n");
    folder.write("words.csv", "user,age\n1,30\n3,old\n");
    folder.write("huge.csv", "user,age\n1,30\n3,1e300\n");
    folder.write("bare.csv", "user,age\n");
    let labels: ArrayRef = Arc::new(Int64Array::from(vec![0, 1, 0]));
    let names: ArrayRef = Arc::new(StringArray::from(vec!["a", "b", "a"]));
    let ages: ArrayRef = Arc::new(Int64Array::from(vec![1, 2, 3]));
    folder.write_parquet("names.parquet", vec![("user", names), ("age", ages.clone())], 2);
    folder.write_parquet("b.parquet", vec![("user", ages), ("label", labels)], 2);
    let numeric = "kind = 'numeric'";
    for (data, age, side, message) in [
        (
            "a.csv",
            numeric,
            "v.csv",
            "`v.csv` matches no file (looked for v.csv); check the path and `data.root`",
        ),
        (
            "a.csv",
            "kind = 'id'\ncolumn = 'agee'",
            "u.csv",
            "column `agee` of feature `age` is missing; did you mean `age`?: u.csv",
        ),
        (
            "none.csv",
            "kind = 'id'",
            "u.csv",
            "column `user` of the join with side table `users` is missing; did you mean `usr`?: none.csv",
        ),
        (
            "a.csv",
            "kind = 'id'",
            "none.csv",
            "column `user` of side table `users` is missing; did you mean `usr`?: none.csv",
        ),
        (
            "a.csv",
            numeric,
            "u.csv",
            "column `user`, row 2 (byte 15): \"3\" has no row in the side table, but the join with side table `users` needs one for every row, because a numeric feature has no `missing = <number>`; set it, or add the row: a.csv",
        ),
        (
            "b.parquet",
            numeric,
            "u.csv",
            "column `user`, row 3 (row group 1): \"3\" has no row in the side table, but the join with side table `users` needs one for every row, because a numeric feature has no `missing = <number>`; set it, or add the row: b.parquet",
        ),
        (
            "null.csv",
            numeric,
            "u.csv",
            "column `user`, row 2 (byte 15): the value is missing, but the join with side table `users` needs one in every row; clean the data: null.csv",
        ),
        (
            "text.csv",
            "kind = 'id'",
            "u.csv",
            "column `user`, row 1 (byte 11): \"u1\" is not a whole number; declare `type = \"string\"` for the join with side table `users` if its ids are text, or add this text to `data.null` if it stands for a missing value: text.csv",
        ),
        (
            "a.csv",
            "kind = 'id'",
            "twice.csv",
            "column `user`, row 2 (byte 14): \"2\" is the key of row 4 too; keep one of the two rows: twice.csv",
        ),
        (
            "a.csv",
            "kind = 'id'",
            "nokey.csv",
            "column `user`, row 2 (byte 14): the value is missing, but side table `users` needs one in every row; clean the data: nokey.csv",
        ),
        (
            "a.csv",
            numeric,
            "holes.csv",
            "column `age`, row 2 (byte 14): the value is missing; give feature `age` a `missing = <number>` or clean the data: holes.csv",
        ),
        (
            "a.csv",
            numeric,
            "words.csv",
            "column `age`, row 2 (byte 14): \"old\" is not a number, which feature `age` needs; add it to `data.null` if it stands for a missing value: words.csv",
        ),
        (
            "a.csv",
            numeric,
            "huge.csv",
            "`features.age`: row 2 of side table `users`: the transformed value is too large for 32-bit floats; scale column `age`",
        ),
        (
            "a.csv",
            numeric,
            "names.parquet",
            "column `user` is a column of strings, but side table `users` needs whole numbers (its `type` is i64); declare `type = \"string\"`, or write the column as integers: names.parquet",
        ),
        (
            "a.csv",
            "kind = 'id'\ntype = 'string'",
            "b.parquet",
            "column `age` of feature `age` is missing; the columns are `user`, `label`: b.parquet",
        ),
    ] {
        assert_eq!(folder.error(&[data], &sides_job(age, side)), message, "{data} {side}");
    }
    let mut named = sides_job("kind = 'id'", "names.parquet");
    named.sides[0].raw = zillion_feature::RawType::String;
    assert_eq!(
        folder.error(&["a.csv"], &named),
        "column `user`, row 1 (row group 0): \"a\" is the key of row 3 too; keep one of the two rows: names.parquet"
    );
    let split = sides_job("kind = 'id'", "?.csv");
    folder.write("v.csv", "user,age\n7,30\n2,40\n");
    let error = folder.error(&["a.csv"], &split);
    assert!(error.starts_with("column `age` of feature `age` is missing"), "{error}");
    let split = sides_job("kind = 'id'", "[uv].csv");
    assert_eq!(
        folder.error(&["a.csv"], &split),
        "column `user`, row 2 (byte 14): \"2\" is the key of row 2 of u.csv too; keep one of the two rows: v.csv"
    );
    // A side table without rows is allowed. It contains no key.
    folder.write("ok.csv", "user,label\n1,0\n");
    let dataset = folder.open(&["ok.csv"], &sides_job("kind = 'id'", "bare.csv")).unwrap();
    let (batch, _) = &read(&dataset, PLAIN, Cursor::default(), 1).unwrap()[0];
    assert_eq!(batch.sparse[0].keys, [FeatureKey::missing("age")]);
    assert_eq!(batch.side_missing, [1]);
}
