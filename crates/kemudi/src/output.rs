//! Output to the terminal. Write errors are ignored (`kemudi up | head`), where the macros of the standard library
//! would panic.

use std::fmt::Arguments;
use std::io::Write;

pub fn line(mut to: impl Write, text: Arguments<'_>) {
    let _ = writeln!(to, "{text}").and_then(|()| to.flush());
}

/// Like `println!`, but ignores write errors.
macro_rules! print_line {
    ($($text:tt)*) => { $crate::output::line(std::io::stdout(), format_args!($($text)*)) };
}

/// Like `eprintln!`, but ignores write errors.
macro_rules! note {
    ($($text:tt)*) => { $crate::output::line(std::io::stderr(), format_args!($($text)*)) };
}

pub(crate) use {note, print_line};

#[cfg(test)]
mod tests {
    /// A pipe whose reader has gone.
    #[test]
    fn output_without_a_reader_is_dropped() {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        super::line(&writer, format_args!("a {}", 1));
        let (mut reader, writer) = std::io::pipe().unwrap();
        super::line(&writer, format_args!("a {}", 1));
        drop(writer);
        let mut text = String::new();
        std::io::Read::read_to_string(&mut reader, &mut text).unwrap();
        assert_eq!(text, "a 1\n");
    }
}
