//! Where it is kept what was left out.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use crate::Missing;

const FILE: &str = "KEELSON_LEFT_OUT";

/// Records that `test` is left out, without ending or failing anything.
pub fn left_out(test: &str, missing: &Missing) {
    let line = match std::env::var_os(FILE) {
        Some(file) => to_file(Path::new(&file), test, missing),
        None => to_errors(test, missing),
    };
    if let Err(error) = line {
        eprintln!("cannot record that {test} is left out ({missing}): {error}");
    }
}

/// A line in one write, since many programs append: the reason and the test, a tab between.
fn to_file(file: &Path, test: &str, missing: &Missing) -> io::Result<()> {
    let program = std::env::current_exe().unwrap_or_default();
    let program = program.file_name().and_then(OsStr::to_str).unwrap_or("test");
    // Cargo appends a number to a test program's name.
    let program = program.rsplit_once('-').map_or(program, |(name, _)| name);
    let line = format!("{missing}\t{program}: {test}\n");
    File::options().create(true).append(true).open(file)?.write_all(line.as_bytes())
}

/// Not by a macro, whose output the harness keeps back.
fn to_errors(test: &str, missing: &Missing) -> io::Result<()> {
    static SHOWN: Mutex<Option<HashSet<Missing>>> = Mutex::new(None);
    let mut shown = SHOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if !shown.get_or_insert_default().insert(missing.clone()) {
        return Ok(());
    }
    io::stderr().write_all(format!("skipped, {test} and maybe others: {missing}\n").as_bytes())
}
