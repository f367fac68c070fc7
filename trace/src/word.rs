//! Columns with a vocabulary: each word is a variant of an enum, and text outside the vocabulary is kept as it came.
//!
//! ```text
//!   on disk        Word<Kind>                       meaning
//!   "kernel"       the word itself                  Some(Kind::Kernel)
//!   "hip_runtime"  another spelling, text kept      Some(Kind::Runtime)
//!   "wormhole"     foreign text, kept               None
//! ```

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt::{self, Debug, Display};
use std::hash::Hash;
use std::ops::Deref;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A string of a table. Shared, because names repeat.
pub type Text = Arc<str>;

/// The longest text that is read from a trace or a shard, in bytes. A longer one is shortened and counted.
pub const MAX_TEXT_BYTES: usize = 1 << 20;

/// A text of at most [`MAX_TEXT_BYTES`]: its first characters.
pub fn shortened(text: &str) -> &str {
    let end = (0..=text.len().min(MAX_TEXT_BYTES)).rev().find(|at| text.is_char_boundary(*at));
    &text[..end.unwrap_or(0)]
}

/// The words that a column may hold. The declarations in [`words`](crate::words) implement it.
pub trait Vocabulary: Copy + Debug + Eq + Ord + Hash + 'static {
    /// Name of the vocabulary in the reference documentation.
    const NAME: &'static str;
    /// Every variant, in the order of declaration.
    const ALL: &'static [Self];
    /// The word on disk.
    fn as_str(self) -> &'static str;
    /// The sentence that documents the word.
    fn doc(self) -> &'static str;
    /// The variant of a word, in any of its spellings.
    fn from_word(word: &str) -> Option<Self>;
}

/// A cell of a column with the vocabulary `V`.
///
/// Compare it with a variant by `==`: that compares meanings, so every spelling counts. Two cells are equal if their
/// texts are. Files of other programs and of newer versions may hold words that `V` lacks; these are kept, so reading
/// and writing a row never changes it.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Word<V>(Repr<V>);

#[derive(Clone, PartialEq, Eq, Hash)]
enum Repr<V> {
    Known(V),
    /// Any other text, with its meaning if it is another spelling of a word.
    Text(Option<V>, Text),
}

impl<V: Vocabulary> Word<V> {
    /// The text on disk.
    pub fn as_str(&self) -> &str {
        match &self.0 {
            Repr::Known(known) => known.as_str(),
            Repr::Text(_, text) => text,
        }
    }

    /// The variant; `None` for text outside the vocabulary.
    pub fn known(&self) -> Option<V> {
        match &self.0 {
            Repr::Known(known) => Some(*known),
            Repr::Text(known, _) => *known,
        }
    }

    /// The text as a shared string.
    pub fn text(&self) -> Text {
        match &self.0 {
            Repr::Known(known) => known.as_str().into(),
            Repr::Text(_, text) => text.clone(),
        }
    }

    fn parse<T: AsRef<str> + Into<Text>>(text: T) -> Self {
        match V::from_word(text.as_ref()) {
            Some(known) if known.as_str() == text.as_ref() => Self(Repr::Known(known)),
            known => Self(Repr::Text(known, text.into())),
        }
    }
}

impl<V: Vocabulary> From<V> for Word<V> {
    fn from(known: V) -> Self {
        Self(Repr::Known(known))
    }
}

impl<V: Vocabulary> From<&str> for Word<V> {
    fn from(text: &str) -> Self {
        Self::parse(text)
    }
}

impl<V: Vocabulary> From<Text> for Word<V> {
    fn from(text: Text) -> Self {
        Self::parse(text)
    }
}

/// Empty text, as in every other text column.
impl<V: Vocabulary> Default for Word<V> {
    fn default() -> Self {
        Self(Repr::Text(None, Text::default()))
    }
}

impl<V: Vocabulary> PartialEq<V> for Word<V> {
    fn eq(&self, variant: &V) -> bool {
        self.known() == Some(*variant)
    }
}

/// The order of the texts, so that sorted rows do not depend on the order of declaration.
impl<V: Vocabulary> Ord for Word<V> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_str().cmp(other.as_str())
    }
}

impl<V: Vocabulary> PartialOrd for Word<V> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<V: Vocabulary> Deref for Word<V> {
    type Target = str;
    fn deref(&self) -> &str {
        self.as_str()
    }
}

impl<V: Vocabulary> Debug for Word<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Debug::fmt(self.as_str(), f)
    }
}

impl<V: Vocabulary> Display for Word<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl<V: Vocabulary> Serialize for Word<V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de, V: Vocabulary> Deserialize<'de> for Word<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self::from(&*Cow::<str>::deserialize(deserializer)?))
    }
}

/// Declares vocabularies: an enum for each, with its words, their other spellings and their documentation.
macro_rules! vocabularies {
    ($(
        $(#[doc = $doc:literal])+
        $name:ident {
            $( $(#[doc = $vdoc:literal])+ $variant:ident = $word:literal $(| $spelling:literal)*, )+
        }
    )+) => {
        $(
            $(#[doc = $doc])+
            #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
            #[repr(u8)]
            pub enum $name {
                $( $(#[doc = $vdoc])+ $variant, )+
            }

            impl $name {
                /// Every variant, in the order of declaration.
                pub const ALL: &'static [Self] = &[$(Self::$variant),+];

                /// The word on disk.
                pub const fn as_str(self) -> &'static str {
                    match self {
                        $( Self::$variant => $word, )+
                    }
                }
            }

            impl $crate::word::Vocabulary for $name {
                const NAME: &'static str = stringify!($name);
                const ALL: &'static [Self] = Self::ALL;
                fn as_str(self) -> &'static str {
                    self.as_str()
                }
                fn doc(self) -> &'static str {
                    match self {
                        $( Self::$variant => concat!($($vdoc),+).trim_ascii_start(), )+
                    }
                }
                fn from_word(word: &str) -> Option<Self> {
                    match word {
                        $( $word $(| $spelling)* => Some(Self::$variant), )+
                        _ => None,
                    }
                }
            }

            impl std::fmt::Display for $name {
                fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                    f.pad(self.as_str())
                }
            }

            impl serde::Serialize for $name {
                fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                    serializer.serialize_str(self.as_str())
                }
            }
        )+

        /// Calls the visitor with every vocabulary, in the order of declaration.
        #[cfg(test)]
        fn visit_vocabularies(visitor: &mut impl tests::VocabularyVisitor) {
            $( visitor.visit::<$name>(); )+
        }
    };
}
