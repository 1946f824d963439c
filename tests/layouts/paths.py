"""Layouts in which the table names the images in an unusual way."""

from layouts.layout import Layout, expected, table

PATHS = [
    Layout(
        "path-any-name",
        "a path column with any name: the cells match files",
        {
            "labels.csv": table(
                "Foto,Ort,tags", lambda n, labels: f"{n}.jpg,{('Kiel', 'Bonn')[n % 2]},{'|'.join(labels)}"
            )
        },
    ),
    Layout(
        "path-without-suffix",
        "paths without a suffix",
        {"labels.csv": table("scan,labels", lambda n, labels: f"scan_{n},{'|'.join(labels)}")},
        expected("scan_{}.png"),
    ),
    Layout(
        "path-prefix",
        "paths that start with folders from elsewhere",
        {"labels.csv": table("path,labels", lambda n, labels: f"data/photos/{n}.jpg,{'|'.join(labels)}")},
    ),
    Layout(
        "path-case",
        "paths in a different case",
        {"labels.csv": table("file,labels", lambda n, labels: f"IMG_{n}.JPG,{'|'.join(labels)}")},
        expected("img_{}.jpg"),
    ),
    Layout(
        "path-number",
        "numbers without leading zeros: `1` for `000001.jpg`",
        {"labels.csv": table("id,labels", lambda n, labels: f"{n},{'|'.join(labels)}")},
        expected("{:06}.jpg"),
    ),
    Layout(
        "path-two-columns",
        "two columns that name the same files",
        {"labels.csv": table("file,path,labels", lambda n, labels: f"{n}.jpg,photos/{n}.jpg,{'|'.join(labels)}")},
    ),
    Layout(
        "path-backslash",
        "paths with `\\`",
        {"labels.csv": table("file,labels", lambda n, labels: f"images\\{n}.jpg,{'|'.join(labels)}")},
        expected("images/{}.jpg"),
    ),
    Layout(
        "path-subfolders",
        "names without their folders: `1.jpg` for `part_1/1.jpg`",
        {"labels.csv": table("file,labels", lambda n, labels: f"{n}.jpg,{'|'.join(labels)}")},
        {
            path: labels
            for part in (1, 2)
            for path, labels in expected(f"part_{part}/{{}}.jpg", range(part, 41, 2)).items()
        },
    ),
    Layout(
        "path-elsewhere",
        "a table outside the folder of the images",
        {"../labels.csv": table("file,labels", lambda n, labels: f"{n}.jpg,{'|'.join(labels)}")},
        command="probmcl train labels.csv --images photos/",
    ),
]
