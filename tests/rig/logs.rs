//! What the parts of a run wrote, shown when something failed.

use std::fs;
use std::path::{Path, PathBuf};

/// Of an agent more is shown than of what stands around it.
const OF_AGENTS: usize = 40;
const OF_OTHERS: usize = 8;

/// Prints the end of every log file below `dir`.
pub fn print_tails(dir: &Path) {
    let mut files = vec![];
    collect(dir, 0, &mut files);
    files.sort();
    for file in files {
        let agent = file.file_name().is_some_and(|n| n.to_string_lossy().starts_with("agent"));
        let end = tail(&file, if agent { OF_AGENTS } else { OF_OTHERS });
        if !end.is_empty() {
            println!("  --- end of {} ---\n{end}", file.display());
        }
    }
}

/// The last lines of a file, as far as it can be read.
pub fn tail(file: &Path, lines: usize) -> String {
    let bytes = fs::read(file).unwrap_or_default();
    let from = bytes.len().saturating_sub(64 * 1024);
    let text = String::from_utf8_lossy(&bytes[from..]);
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..]
        .iter()
        .map(|l| l.chars().take(400).collect::<String>() + "\n")
        .collect()
}

/// Logs lie in the folder of their part, not deeper: a runtime's own directories are huge.
fn collect(dir: &Path, depth: u32, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        match entry.file_type() {
            Ok(t) if t.is_dir() && depth < 2 => collect(&path, depth + 1, files),
            Ok(t) if t.is_file() && path.extension().is_some_and(|e| e == "log") => files.push(path),
            _ => {}
        }
    }
}
