//! Rust source without comments and literals, for checks that look for words.

/// Replaces comments, strings and character literals with spaces. Line breaks stay.
pub(super) fn code_only(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let skipped = comment(rest).or_else(|| literal(rest));
        let (head, tail) = rest.split_at(skipped.unwrap_or(first.len_utf8()));
        match skipped {
            Some(_) => code.extend(head.chars().map(|c| if c == '\n' { c } else { ' ' })),
            None => code.push_str(head),
        }
        rest = tail;
    }
    code
}

/// The length of the comment at the beginning of the text.
fn comment(text: &str) -> Option<usize> {
    if text.starts_with("//") {
        return Some(text.find('\n').unwrap_or(text.len()));
    }
    if !text.starts_with("/*") {
        return None;
    }
    let (mut at, mut depth) = (2, 1);
    while depth > 0 {
        let next = at + text[at..].find(['/', '*'])?;
        let nesting = [("/*", 1), ("*/", -1)].into_iter().find(|(mark, _)| text[next..].starts_with(mark));
        at = next + if nesting.is_some() { 2 } else { 1 };
        depth += nesting.map_or(0, |(_, change)| change);
    }
    Some(at)
}

/// The length of the string or character literal at the beginning of the text. A lifetime is neither.
fn literal(text: &str) -> Option<usize> {
    if let Some(inside) = text.strip_prefix('\'') {
        return match inside.chars().next()? {
            '\\' => inside.get(2..)?.find('\'').map(|end| end + 4),
            one => inside[one.len_utf8()..].starts_with('\'').then_some(one.len_utf8() + 2),
        };
    }
    if text.starts_with('"') {
        let mut escaped = false;
        let ends = |(_, c): &(usize, char)| {
            let end = *c == '"' && !escaped;
            escaped = *c == '\\' && !escaped;
            end
        };
        return text.char_indices().skip(1).find(ends).map(|(end, _)| end + 1);
    }
    let raw = text.strip_prefix(['b', 'c']).unwrap_or(text).strip_prefix('r')?;
    let inside = raw.trim_start_matches('#').strip_prefix('"')?;
    let closing = format!("\"{}", "#".repeat(raw.len() - inside.len() - 1));
    inside.find(&closing).map(|end| text.len() - inside.len() + end + closing.len())
}

#[cfg(test)]
mod tests {
    use super::code_only;

    #[test]
    fn comments_and_literals_are_gone_and_code_stays() {
        let source = r##"
let a = "x \" x \\"; // x
/* x /* x */ x */ let b: &'a str = r#"x " x"#;
let (c, d) = ('x', '\''); /// x
let e = br"x\"; fn r#type() {} let f = '"';"##;
        let code = code_only(source);
        assert!(!code.contains('x'), "{code}");
        let words: Vec<&str> = code.split_whitespace().collect();
        assert_eq!(
            words.join(" "),
            "let a = ; let b: &'a str = ; let (c, d) = ( , ); let e = ; fn r#type() {} let f = ;"
        );
        assert_eq!(code.lines().count(), source.lines().count());
    }
}
