//! Go's `text/tabwriter`: a column is as wide as its widest cell among adjacent lines.

/// Aligns cells that end with tabs. Text after the last tab of a line is not padded.
pub fn align(text: &str, min_width: usize, padding: usize) -> String {
    write(text, min_width, padding, None)
}

/// [`align`], but a column is never narrower than above, as in kubectl's own table writer.
pub fn align_monotonic(text: &str, min_width: usize, padding: usize) -> String {
    write(text, min_width, padding, Some(Vec::new()))
}

fn write(text: &str, min_width: usize, padding: usize, before: Option<Vec<usize>>) -> String {
    let lines: Vec<Vec<&str>> = text.split('\n').map(|l| l.split('\t').collect()).collect();
    let out = String::with_capacity(text.len() * 2);
    let mut w = Writer { lines, widths: Vec::new(), before, min_width, padding, out };
    let n = w.lines.len();
    w.format(0, n);
    // The last newline of the text made one line too many.
    w.out.pop();
    w.out
}

/// Aligns as `kubectl describe` does.
pub fn describe(text: &str) -> String {
    align(text, 0, 2)
}

struct Writer<'a> {
    lines: Vec<Vec<&'a str>>,
    widths: Vec<usize>,
    /// The widths of columns further up, if they count.
    before: Option<Vec<usize>>,
    min_width: usize,
    padding: usize,
    out: String,
}

impl Writer<'_> {
    fn format(&mut self, mut from: usize, to: usize) {
        let column = self.widths.len();
        let mut this = from;
        while this < to {
            if column + 1 >= self.lines[this].len() {
                this += 1;
                continue;
            }
            self.write(from, this);
            from = this;
            let mut width = self.min_width;
            while this < to && column + 1 < self.lines[this].len() {
                width = width.max(self.lines[this][column].chars().count() + self.padding);
                this += 1;
            }
            if let Some(before) = &mut self.before {
                if before.len() <= column {
                    before.resize(column + 1, 0);
                }
                width = width.max(before[column]);
                before[column] = width;
            }
            self.widths.push(width);
            self.format(from, this);
            self.widths.pop();
            from = this;
        }
        self.write(from, to);
    }

    fn write(&mut self, from: usize, to: usize) {
        for i in from..to {
            for (j, cell) in self.lines[i].iter().enumerate() {
                self.out.push_str(cell);
                if let Some(w) = self.widths.get(j)
                    && j + 1 < self.lines[i].len()
                {
                    let pad = w.saturating_sub(cell.chars().count());
                    self.out.extend(std::iter::repeat_n(' ', pad));
                }
            }
            self.out.push('\n');
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn widths_depend_on_adjacent_lines() {
        assert_eq!(
            super::describe("Name:\tx\nLong name:\ty\nContainers:\n  c:\n    A:\tb\tc\n    AAAA:\tbbb\tc\nZ:\tz\n"),
            "Name:       x\nLong name:  y\nContainers:\n  c:\n    A:     b    c\n    AAAA:  bbb  c\nZ:         z\n"
        );
    }
}
