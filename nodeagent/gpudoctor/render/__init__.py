"""Reports as text, JSON and other formats; sees nothing but `gpudoctor.report`."""
