//! Writes the manual pages of the command and its completions for shells into a folder, laid out like `share` in a
//! system: `cargo run --package ironwarp-cli --example pages -- FOLDER`. `cargo xtask dist` runs it.
//!
//! This is a program of its own so that the command does not contain the generators.

use clap::Command;
use clap_complete::{Shell, generate};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};
use std::env;
use std::error::Error;
use std::fs::{self, File};
use std::path::Path;

const NAME: &str = "ironwarp";

/// Where each shell searches completions, as its own documentation says.
const COMPLETIONS: [(Shell, &str); 3] = [
    (Shell::Bash, "bash-completion/completions/ironwarp"),
    (Shell::Zsh, "zsh/site-functions/_ironwarp"),
    (Shell::Fish, "fish/vendor_completions.d/ironwarp.fish"),
];

fn main() -> Result<(), Box<dyn Error>> {
    let folder = env::args().nth(1).ok_or("usage: pages FOLDER")?;
    let folder = Path::new(&folder);
    for (shell, file) in COMPLETIONS {
        generate(shell, &mut ironwarp_cli::definition(), NAME, &mut create(&folder.join(file))?);
    }
    let mut command = ironwarp_cli::definition().disable_help_subcommand(true);
    command.build();
    let names = || command.get_subcommands().map(display_name);
    write_page(&command, &names().collect::<Vec<_>>(), folder)?;
    for subcommand in command.get_subcommands() {
        let others = names().filter(|other| *other != display_name(subcommand));
        write_page(subcommand, &[NAME].into_iter().chain(others).collect::<Vec<_>>(), folder)?;
    }
    Ok(())
}

/// The name of a command's page, such as `ironwarp-run`.
fn display_name(command: &Command) -> &str {
    command.get_display_name().unwrap_or(NAME)
}

fn create(path: &Path) -> Result<File, Box<dyn Error>> {
    fs::create_dir_all(path.parent().ok_or("a file is in a folder")?)?;
    Ok(File::create(path)?)
}

/// Writes a manual page. Unlike `Man::render`, it shows the usage that the help shows, and keeps the lines of examples.
fn write_page(command: &Command, others: &[&str], folder: &Path) -> Result<(), Box<dyn Error>> {
    let file = &mut create(&folder.join(format!("man/man1/{}.1", display_name(command))))?;
    let version = concat!("Ironwarp ", env!("CARGO_PKG_VERSION"));
    let page = Man::new(command.clone()).source(version).manual("Ironwarp");
    page.render_title(file)?;
    page.render_name_section(file)?;
    let usage = command.clone().render_usage().to_string();
    let mut synopsis = Roff::new();
    synopsis.control("SH", ["SYNOPSIS"]).control("nf", []);
    synopsis.text([roman(usage.trim_start_matches("Usage: "))]).control("fi", []);
    synopsis.to_writer(file)?;
    page.render_description_section(file)?;
    page.render_options_section(file)?;
    if command.has_subcommands() {
        page.render_subcommands_section(file)?;
    }
    let mut end = Roff::new();
    if let Some(text) = command.get_after_help() {
        end.control("SH", ["NOTES"]);
        write_notes(&mut end, &text.to_string());
    }
    let others: Vec<String> = others.iter().map(|name| format!("{name}(1)")).collect();
    end.control("SH", ["SEE ALSO"]).text([roman(others.join(", "))]);
    Ok(end.to_writer(file)?)
}

/// Writes paragraphs. Indented lines are examples, which must not be joined.
fn write_notes(page: &mut Roff, text: &str) {
    let mut example = false;
    for line in text.lines() {
        if line.starts_with("  ") != example {
            example = !example;
            page.control(if example { "nf" } else { "fi" }, []);
        }
        if line.is_empty() {
            page.control("PP", []);
        } else {
            page.text([roman(line)]);
        }
    }
    if example {
        page.control("fi", []);
    }
}
